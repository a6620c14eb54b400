//! Valid scripts, and invalid ones with the reasons.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const fn after(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[rstest]
#[case("run", Step::Run)]
#[case("exit-0", Step::Exit { code: 0, after: after(0) })]
#[case("exit-255-after-500ms", Step::Exit { code: 255, after: after(500) })]
#[case("exit-1-after-2m", Step::Exit { code: 1, after: after(120_000) })]
#[case("exit-0-on-term", Step::ExitOnTerm { code: 0, after: after(0) })]
#[case("exit-3-on-term-after-1s", Step::ExitOnTerm { code: 3, after: after(1_000) })]
#[case("ignore-term", Step::IgnoreTerm)]
#[case("log-1-a-second", Step::Log { per_second: 1, stderr: false })]
#[case("log-10000-a-second-to-stderr", Step::Log { per_second: 10_000, stderr: true })]
#[case("allocate-64mi", Step::Allocate { bytes: Some(64 << 20), after: after(0) })]
#[case("allocate-1ki-after-1h", Step::Allocate { bytes: Some(1 << 10), after: after(3_600_000) })]
#[case("allocate-until-oom", Step::Allocate { bytes: None, after: after(0) })]
#[case("allocate-until-oom-after-2s", Step::Allocate { bytes: None, after: after(2_000) })]
#[case("fork-20", Step::Fork { count: 20, after: after(0) })]
#[case("fork-1000-after-24h", Step::Fork { count: 1_000, after: after(86_400_000) })]
#[case("create-takes-5s", Step::CreateTakes(after(5_000)))]
#[case("create-fails", Step::CreateFails)]
#[case("start-takes-100ms", Step::StartTakes(after(100)))]
#[case("start-fails", Step::StartFails)]
#[case("exec-hangs", Step::ExecHangs)]
fn script_of_one_step_is_read(#[case] text: &str, #[case] step: Step) {
    let script: Script = text.parse().unwrap();
    assert_eq!(script.steps().collect::<Vec<_>>(), [step]);
}

#[rstest]
#[case::slashes("log-5-a-second/exit-1", "exit-1/log-5-a-second")]
#[case::commas("exec-hangs, ignore-term", "ignore-term/exec-hangs")]
#[case::no_wait("exit-1-after-0s", "exit-1")]
#[case::larger_units(
    "exit-1-after-120s/allocate-1024mi",
    "step \"allocate-1024mi\": \"1024mi\" is not until-oom, nor a size: a whole number with ki, mi or gi, at most 1023gi"
)]
#[case::largest_unit("exit-007-after-7200s", "exit-7-after-2h")]
#[case::slow_and_failing(
    "create-fails/create-takes-1s/start-fails/start-takes-1500ms",
    "create-takes-1s/create-fails/start-takes-1500ms/start-fails"
)]
#[case::empty("", "a step is missing: write one such as exit-1-after-2s, and / between two steps")]
#[case::empty_step(
    "run//exec-hangs",
    "a step is missing: write one such as exit-1-after-2s, and / between two steps"
)]
#[case::misspelt(
    "exti-1-after-2s",
    "there is no step \"exti-1-after-2s\": did you mean exit-CODE[-after-TIME]?"
)]
#[case::misspelt_and_short(
    "exti-1",
    "there is no step \"exti-1\": did you mean exit-CODE[-after-TIME]?"
)]
#[case::misspelt_ending(
    "exit-1-afer-2s",
    "there is no step \"exit-1-afer-2s\": did you mean exit-CODE[-after-TIME]?"
)]
#[case::half_a_step(
    "log-5-per-second",
    "there is no step \"log-5-per-second\": did you mean log-COUNT-a-second[-to-stderr]?"
)]
#[case::ignores_other(
    "ignore-terms",
    "there is no step \"ignore-terms\": did you mean ignore-term?"
)]
#[case::unlike_all(
    "zzz",
    "there is no step \"zzz\"; there are: run, exit-CODE[-after-TIME], exit-CODE-on-term[-after-TIME], ignore-term, \
     log-COUNT-a-second[-to-stderr], allocate-SIZE[-after-TIME], allocate-until-oom[-after-TIME], \
     fork-COUNT[-after-TIME], create-takes-TIME, create-fails, start-takes-TIME, start-fails, exec-hangs"
)]
#[case::code("exit-256", "step \"exit-256\": \"256\" is not an exit code: 0 to 255")]
#[case::sign("exit-+1", "step \"exit-+1\": \"+1\" is not an exit code: 0 to 255")]
#[case::no_code("exit-", "step \"exit-\": \"\" is not an exit code: 0 to 255")]
#[case::no_unit(
    "exit-1-after-2",
    "step \"exit-1-after-2\": \"2\" is not a time: a whole number with ms, s, m or h, at most 24h"
)]
#[case::other_unit(
    "create-takes-5d",
    "step \"create-takes-5d\": \"5d\" is not a time: a whole number with ms, s, m or h, at most 24h"
)]
#[case::too_long(
    "start-takes-25h",
    "step \"start-takes-25h\": \"25h\" is not a time: a whole number with ms, s, m or h, at most 24h"
)]
#[case::overflow(
    "start-takes-99999999999h",
    "step \"start-takes-99999999999h\": \"99999999999h\" is not a time: a whole number with ms, s, m or h, at most 24h"
)]
#[case::no_lines(
    "log-0-a-second",
    "step \"log-0-a-second\": \"0\" is not a number of lines: 1 to 10000"
)]
#[case::no_children("fork-0", "step \"fork-0\": \"0\" is not a number of processes: 1 to 1000")]
#[case::many_children(
    "fork-1001",
    "step \"fork-1001\": \"1001\" is not a number of processes: 1 to 1000"
)]
#[case::size(
    "allocate-64m",
    "step \"allocate-64m\": \"64m\" is not until-oom, nor a size: a whole number with ki, mi or gi, at most 1023gi"
)]
#[case::twice("exit-1/exit-2", "exit-1 and exit-2 exclude each other: leave one out")]
#[case::run_and_exit(
    "exit-1-after-1s/run",
    "exit-1-after-1s and run exclude each other: leave one out"
)]
#[case::term(
    "ignore-term/exit-0-on-term",
    "ignore-term and exit-0-on-term exclude each other: leave one out"
)]
#[case::memory(
    "allocate-1mi/allocate-until-oom",
    "allocate-1mi and allocate-until-oom exclude each other: leave one out"
)]
fn script_is_written_in_order_or_refused_with_reason(#[case] text: &str, #[case] want: &str) {
    let said = match text.parse::<Script>() {
        Ok(script) => script.to_string(),
        Err(error) => error.to_string(),
    };
    assert_eq!(said, want);
}

#[rstest]
fn every_form_has_an_example_that_it_describes(
    #[values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)] index: usize,
) {
    let Form { form, example } = FORMS[index];
    let script: Script = example.parse().unwrap();
    assert_eq!(script.to_string(), example);
    // The form's words without its values and brackets are the words of the example.
    let words: Vec<&str> = form
        .split(['-', '[', ']'])
        .filter(|word| !word.is_empty() && *word == word.to_lowercase())
        .collect();
    let own: Vec<&str> = example.split('-').collect();
    let in_brackets = |word: &&&str| form.contains(&format!("[-{word}"));
    for word in words.iter().filter(|word| !in_brackets(word)) {
        assert!(own.contains(word) || *word == "stderr", "{form} against {example}");
    }
}

#[test]
fn process_steps_differ_from_runtime_steps() {
    let runtime: Vec<&str> = FORMS
        .iter()
        .filter(|known| {
            let script: Script = known.example.parse().unwrap();
            !script.steps().any(Step::is_of_process)
        })
        .map(|known| known.form)
        .collect();
    assert_eq!(
        runtime,
        ["create-takes-TIME", "create-fails", "start-takes-TIME", "start-fails", "exec-hangs"]
    );
}

fn any_step() -> impl Strategy<Value = Step> {
    let time = || (0..=86_400_000u64).prop_map(Duration::from_millis);
    let bytes = prop_oneof![
        Just(None),
        (1..=1023u64, 0..3u32).prop_map(|(n, unit)| Some(n << (10 * (unit + 1)))),
    ];
    prop_oneof![
        Just(Step::Run),
        (any::<u8>(), time()).prop_map(|(code, after)| Step::Exit { code, after }),
        (any::<u8>(), time()).prop_map(|(code, after)| Step::ExitOnTerm { code, after }),
        Just(Step::IgnoreTerm),
        (1..=10_000u32, any::<bool>())
            .prop_map(|(per_second, stderr)| Step::Log { per_second, stderr }),
        (bytes, time()).prop_map(|(bytes, after)| Step::Allocate { bytes, after }),
        (1..=1_000u32, time()).prop_map(|(count, after)| Step::Fork { count, after }),
        time().prop_map(Step::CreateTakes),
        Just(Step::CreateFails),
        time().prop_map(Step::StartTakes),
        Just(Step::StartFails),
        Just(Step::ExecHangs),
    ]
}

proptest! {
    #[test]
    fn written_script_is_read_as_the_same(steps in proptest::collection::vec(any_step(), 1..8)) {
        let mut steps = steps;
        steps.sort_by_key(|step| step.topic());
        steps.dedup_by_key(|step| step.topic());
        let script = Script(steps);
        let text = script.to_string();
        prop_assert_eq!(text.parse::<Script>().unwrap(), script);
        // A script fits into an image's name.
        let name: image_reference::Reference = format!("crib.local/behave/{text}").parse().unwrap();
        prop_assert_eq!(name.repository, format!("crib.local/behave/{text}"));
    }

    #[test]
    fn script_parser_never_panics(text in ".{0,60}", words in "(exit|log|fork|allocate|-|after|[0-9]{1,22}|s|mi|/|,){0,12}") {
        for text in [text, words] {
            if let Err(error) = text.parse::<Script>() {
                prop_assert!(!error.to_string().contains('\n') || text.contains('\n'));
            }
        }
    }
}
