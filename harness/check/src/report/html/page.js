"use strict";
// The filters are in the address after "#", so that a view can be sent as a link; an address without "=" names an element.
const form = document.getElementById("filters");
const rules = [...document.querySelectorAll(".rule")];
const names = ["result", "severity", "area", "text"];
const toggle = document.getElementById("toggle");

function apply() {
  const wanted = Object.fromEntries(names.map((name) => [name, form.elements[name].value]));
  const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const rule of rules) {
    const kind = ["result", "severity", "area"].every((name) => !wanted[name] || rule.dataset[name] === wanted[name]);
    rule.hidden = !(kind && words.every((word) => rule.dataset.find.includes(word)));
    shown += rule.hidden ? 0 : 1;
  }
  document.getElementById("none").hidden = shown > 0;
  document.getElementById("shown").textContent = `${shown} of ${rules.length} rules`;
}

function remember() {
  const set = new URLSearchParams();
  for (const name of names) {
    if (form.elements[name].value) set.set(name, form.elements[name].value);
  }
  history.replaceState(null, "", `#${set}`);
  apply();
}

function follow() {
  const address = decodeURIComponent(location.hash.slice(1));
  if (address && !address.includes("=")) {
    const target = document.getElementById(address);
    for (let at = target; at; at = at.parentElement) {
      if (at.tagName === "DETAILS") {
        at.open = true;
        at.hidden = false;
      }
    }
    if (target) target.scrollIntoView();
    return;
  }
  const set = new URLSearchParams(location.hash.slice(1));
  for (const name of names) {
    form.elements[name].value = set.get(name) ?? "";
    // A word that is no option selects nothing.
    if (form.elements[name].selectedIndex === -1) form.elements[name].value = "";
  }
  apply();
}

if (form) {
  form.addEventListener("input", remember);
  form.addEventListener("submit", (event) => event.preventDefault());
  // The fields are cleared after the event.
  form.addEventListener("reset", () => setTimeout(remember));
  toggle.addEventListener("click", () => {
    const open = toggle.textContent === "Open all";
    for (const rule of rules) {
      if (!rule.hidden) rule.open = open;
    }
    toggle.textContent = open ? "Close all" : "Open all";
  });
  window.addEventListener("hashchange", follow);
  follow();
}
