//! How much longer the calls take beside many pods of one container.

use std::{io::Write as _, time::Instant};

use harness::{Pod, Runtime, fixture};

use crate::{Failed, round, table::Table};

/// The pods that the calls are measured beside, at first and in the end.
const FEW: usize = 10;
pub(crate) const MANY: usize = 1000;
const ROUNDS: usize = 60;

pub(crate) async fn measure(many: usize) -> Result<(), Failed> {
    let runtime = Runtime::start().await?;
    let mut out = std::io::stdout();
    let mut pods: Vec<Pod> = Vec::new();
    let began = Instant::now();
    let mut tables = Vec::new();
    for wanted in [FEW, many] {
        for number in pods.len()..wanted {
            let pod = runtime.pod(&format!("crowd-{number}")).await?;
            pod.start(fixture::forever("main")).await?;
            pods.push(pod);
        }
        if wanted == many {
            let took = began.elapsed();
            writeln!(
                out,
                "{many} pods of one container were there after {took:.1?}"
            )?;
        }
        let mut table = Table::default();
        for number in 0..ROUNDS {
            round(&mut table, &runtime, &format!("round-{number}")).await?;
            let all = runtime.client.pods(Default::default());
            let all = table.time("ListPodSandbox", all).await?;
            assert_eq!(all.len(), wanted);
            let all = runtime.client.containers(Default::default());
            let all = table.time("ListContainers", all).await?;
            assert_eq!(all.len(), wanted);
        }
        tables.push(table);
    }
    writeln!(out, "p50 in ms beside {FEW} pods, beside {many}, ratio")?;
    if let [few, many] = tables.as_mut_slice() {
        for ((name, [few]), (_, [many])) in few.at([50]).zip(many.at([50])) {
            writeln!(out, "{few:9.2} {many:9.2} {:6.2}  {name}", many / few)?;
        }
    }
    for pod in pods {
        runtime.client.remove_pod(&pod.id).await?;
    }
    Ok(())
}
