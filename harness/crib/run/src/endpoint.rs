//! How to reach the pods of a run from elsewhere.

use crib_base::args::Output;
use crib_base::report::say;

use crate::args::RunArgs;
use crate::processes::root::Root;

/// Prints the endpoint of the run's runtime, unless only the output of containers or JSON was asked for.
pub(crate) fn announce(args: &RunArgs, root: &Root) {
    if !args.quiet && args.output == Output::Text {
        let socket = root.socket();
        say(&format!("runtime endpoint: unix://{}", socket.display()));
    }
}
