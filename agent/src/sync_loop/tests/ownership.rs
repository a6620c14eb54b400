//! A runtime that the agent shares with others.

use super::*;

/// Runs a pod of the agent `maker`, and returns whether another agent ended it.
async fn is_ended(maker: Option<&str>, agent: Option<&str>, adopt_node: bool) -> bool {
    let mut scene = Scene::new();
    scene.restart_as(maker, false).await;
    scene.run(&pod("u1", "app", "Always")).await;
    scene.restart_as(agent, adopt_node).await;
    scene.want(&[]);
    scene.sleep(120).await;
    scene.fake.population() == (0, 0)
}

#[tokio::test(start_paused = true)]
async fn agent_ends_orphans_of_its_own_only() {
    assert!(is_ended(Some("own"), Some("own"), false).await);
    assert!(!is_ended(Some("other"), Some("own"), false).await);
    assert!(!is_ended(None, Some("own"), false).await);
}

#[tokio::test(start_paused = true)]
async fn agent_that_adopts_the_node_ends_every_orphan() {
    assert!(is_ended(Some("other"), Some("own"), true).await);
    assert!(is_ended(Some("other"), None, false).await);
}
