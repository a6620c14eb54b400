// Evaluates the JSON reports of critest: `report NAME=FILE…`. It fails on a failed spec, on a skip without a reason
// below, and if no spec ran.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// Specs that do not apply: they are excluded by name and not counted.
var aside = []string{"benchmark", "[k8s.io] NRI"}

// Specs that this host cannot run: a part of the spec's name, a check that the host lacks the feature, and the reason.
var maySkip = []struct {
	name    string
	lacking func() bool
	reason  string
}{
	{"AppArmor", func() bool { return !reads("/sys/module/apparmor/parameters/enabled", "Y") }, "the kernel has no AppArmor"},
	{"SELinux", func() bool { return !exists("/sys/fs/selinux/enforce") }, "the kernel has no SELinux"},
}

type suite struct {
	RunTime     time.Duration
	SpecReports []spec
}

type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	NumAttempts             int
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(append([]string{}, s.ContainerHierarchyTexts...), s.LeafNodeText), " / ")
}

type count struct{ passed, failed, skipped int }

func main() {
	var total count
	var took time.Duration
	for _, argument := range os.Args[1:] {
		name, file, found := strings.Cut(argument, "=")
		if !found {
			fatal("usage: report NAME=FILE…")
		}
		one, each := read(name, file)
		fmt.Printf("%s: %d passed, %d failed, %d skipped in %.1f s\n", name, one.passed, one.failed, one.skipped, each.Seconds())
		total.passed += one.passed
		total.failed += one.failed
		total.skipped += one.skipped
		took += each
	}
	fmt.Printf("%d passed, %d failed, %d skipped, %.0f s\n", total.passed, total.failed, total.skipped, took.Seconds())
	if total.failed > 0 || total.passed == 0 {
		os.Exit(1)
	}
}

func read(name, file string) (count, time.Duration) {
	text, err := os.ReadFile(file)
	if err != nil {
		fatal("%s: there is no report, so the suite did not end: %v", name, err)
	}
	var suites []suite
	if err := json.Unmarshal(text, &suites); err != nil {
		fatal("%s: %s is no report: %v", name, file, err)
	}
	var counted count
	var took time.Duration
	for _, suite := range suites {
		took += suite.RunTime
		for _, spec := range suite.SpecReports {
			counted.add(name, spec)
		}
	}
	return counted, took
}

func (c *count) add(run string, s spec) {
	switch {
	case s.State == "passed" && s.LeafNodeType == "It":
		c.passed++
	case s.State == "passed":
		// A step of the suite itself, such as its setup.
	case s.State == "skipped" && (s.NumAttempts == 0 || among(aside, s.name())):
		// Not selected.
	case s.State == "skipped":
		reason := reasonFor(s.name())
		if reason == "" {
			c.failed++
			fmt.Printf("%s: skipped without a listed reason: %s: %s\n", run, s.name(), s.Failure.Message)
			return
		}
		c.skipped++
		fmt.Printf("%s: skipped: %s: %s\n", run, s.name(), reason)
	default:
		c.failed++
		fmt.Printf("%s: %s: %s\n%s\n", run, s.State, s.name(), indent(s.Failure.Message))
	}
}

func reasonFor(name string) string {
	for _, each := range maySkip {
		if strings.Contains(name, each.name) && each.lacking() {
			return each.reason
		}
	}
	return ""
}

func among(parts []string, name string) bool {
	for _, part := range parts {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func reads(path, wanted string) bool {
	text, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(text)) == wanted
}

func fatal(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "report: "+format+"\n", arguments...)
	os.Exit(1)
}
