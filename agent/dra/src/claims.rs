//! ◆ The claims of the node: which pods use them, and which devices drivers have prepared for them. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/claiminfo.go, state/state.go.

use agent::managers::claims::{PreparedClaim, PreparedDevice};
use compact::{Map, Set};
use serde::{Deserialize, Deserializer, Serialize};

/// A claim, in the form of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Claim {
    #[serde(rename = "ClaimUID")]
    pub(crate) uid: String,
    #[serde(rename = "ClaimName")]
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// The uids of the pods that use it.
    #[serde(rename = "PodUIDs", default, deserialize_with = "or_default")]
    pub(crate) pods: Map<String, Empty>,
    /// The drivers of its allocation, including those without devices in it.
    #[serde(rename = "DriverState", default, deserialize_with = "or_default")]
    pub(crate) drivers: Map<String, DriverDevices>,
    /// This agent's drivers have prepared it. A claim of an earlier agent is prepared again, because that agent may have been
    /// killed too soon.
    #[serde(skip)]
    pub(crate) is_prepared: bool,
}

/// The value of each key in a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Empty {}

/// The devices that a driver has prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DriverDevices {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) devices: Vec<Device>,
}

/// A prepared device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Device {
    #[serde(rename = "PoolName")]
    pub(crate) pool: String,
    #[serde(rename = "DeviceName")]
    pub(crate) name: String,
    #[serde(rename = "ShareID", default)]
    pub(crate) share_id: Option<String>,
    /// The requests of the claim that it satisfies; empty: all.
    #[serde(rename = "RequestNames", default, deserialize_with = "or_default")]
    pub(crate) requests: Vec<String>,
    #[serde(rename = "CDIDeviceIDs", default, deserialize_with = "or_default")]
    pub(crate) cdi_devices: Vec<String>,
}

/// Go encodes empty collections as `null`.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Claim {
    pub(crate) fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// The devices of one of its requests, with their drivers; an empty name means all requests.
    pub(crate) fn devices(&self, request: &str) -> impl Iterator<Item = (&String, &Device)> {
        let all = self.drivers.iter().flat_map(|(driver, of_driver)| {
            of_driver.devices.iter().map(move |device| (driver, device))
        });
        all.filter(move |(_, device)| {
            request.is_empty()
                || device.requests.is_empty()
                || device.requests.iter().any(|of| of == request)
        })
    }
}

/// Identifies a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A claim that a pod needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequiredClaim {
    pub(crate) key: Key,
    pub(crate) uid: String,
    pub(crate) drivers: Set<String>,
}

/// All claims of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims(Map<Key, Claim>);

impl Claims {
    pub(crate) fn new(claims: Vec<Claim>) -> Self {
        Self(claims.into_iter().map(|claim| (claim.key(), claim)).collect())
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Claim> {
        self.0.get(key)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Claim> {
        self.0.values()
    }

    /// Records that a pod uses claims. Returns the unprepared ones.
    ///
    /// # Errors
    /// If another claim of the same name still exists. Nothing is recorded then.
    pub(crate) fn add(
        &mut self,
        pod: &str,
        required: &[RequiredClaim],
    ) -> Result<Vec<Claim>, String> {
        for claim in required {
            if let Some(old) = self.0.get(&claim.key)
                && old.uid != claim.uid
            {
                return Err(format!(
                    "old ResourceClaim with same name {} and different UID {} still exists (previous pod force-deleted?!)",
                    claim.key.name, old.uid
                ));
            }
        }
        let mut unprepared = Vec::new();
        for claim in required {
            let known = self.0.entry(claim.key.clone()).or_insert_with(|| Claim {
                uid: claim.uid.clone(),
                name: claim.key.name.clone(),
                namespace: claim.key.namespace.clone(),
                drivers: claim
                    .drivers
                    .iter()
                    .map(|it| (it.clone(), DriverDevices::default()))
                    .collect(),
                ..Claim::default()
            });
            known.pods.insert(pod.to_owned(), Empty {});
            if !known.is_prepared {
                unprepared.push(known.clone());
            }
        }
        Ok(unprepared)
    }

    /// Replaces the devices that a driver has prepared for a claim.
    pub(crate) fn set_devices(&mut self, key: &Key, driver: &str, devices: Vec<Device>) {
        if let Some(claim) = self.0.get_mut(key) {
            claim.drivers.insert(driver.to_owned(), DriverDevices { devices });
        }
    }

    /// Records that all drivers have prepared a claim.
    pub(crate) fn set_prepared(&mut self, key: &Key) {
        if let Some(claim) = self.0.get_mut(key) {
            claim.is_prepared = true;
        }
    }

    /// The uids of all pods that use claims.
    pub(crate) fn pods(&self) -> Set<String> {
        self.0.values().flat_map(|claim| claim.pods.keys().cloned()).collect()
    }

    /// The claims that a pod uses.
    pub(crate) fn of_pod(&self, pod: &str) -> Vec<Key> {
        let used = self.0.iter().filter(|(_, claim)| claim.pods.contains_key(pod));
        used.map(|(key, _)| key.clone()).collect()
    }

    /// Removes a pod from claims that other pods use. Returns the claims that no other pod uses: the pod stays recorded until
    /// they are [removed](Self::remove).
    pub(crate) fn remove_pod(&mut self, pod: &str) -> Vec<Claim> {
        let mut unused = Vec::new();
        for claim in self.0.values_mut().filter(|claim| claim.pods.contains_key(pod)) {
            if claim.pods.len() > 1 {
                claim.pods.remove(pod);
            } else {
                unused.push(claim.clone());
            }
        }
        unused
    }

    /// Removes a claim that is unprepared.
    pub(crate) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// The unique names of the CDI devices of a claim's requests.
    ///
    /// # Errors
    /// If the claim is unknown.
    pub(crate) fn cdi_devices(
        &self,
        key: &Key,
        requests: &[String],
    ) -> Result<Vec<String>, String> {
        let claim = self.0.get(key).ok_or_else(|| {
            format!(
                "internal error: unable to get claim info for ResourceClaim {} in namespace {}",
                key.name, key.namespace
            )
        })?;
        let mut names = Vec::new();
        for request in requests {
            for name in claim.devices(request).flat_map(|(_, device)| &device.cdi_devices) {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        Ok(names)
    }

    /// The number of claims by driver; the driver `<any>` stands for all (claiminfo.go claimsInUse).
    pub(crate) fn in_use(&self) -> Map<String, u64> {
        let mut counts: Map<String, u64> = [("<any>".to_owned(), 0)].into_iter().collect();
        for claim in self.0.values().filter(|claim| claim.is_prepared) {
            for driver in claim.drivers.keys().map(String::as_str).chain(["<any>"]) {
                *counts.entry(driver.to_owned()).or_default() += 1;
            }
        }
        counts
    }

    /// The prepared devices of a claim.
    pub(crate) fn prepared(&self, key: &Key) -> Option<PreparedClaim> {
        let claim = self.0.get(key)?;
        let of_driver = |(driver, of_driver): (&String, &DriverDevices)| -> Vec<PreparedDevice> {
            let devices = of_driver.devices.iter().map(|device| PreparedDevice {
                driver: driver.clone(),
                pool: device.pool.clone(),
                device: device.name.clone(),
                share_id: device.share_id.clone(),
                cdi_devices: device.cdi_devices.clone(),
            });
            devices.collect()
        };
        Some(PreparedClaim {
            name: claim.name.clone(),
            namespace: claim.namespace.clone(),
            devices: claim.drivers.iter().flat_map(of_driver).collect(),
        })
    }
}

/// A driver's answers about claims, by the claim's uid.
pub(crate) type ClaimResults<T> = Map<String, Result<T, String>>;

/// Matches the answers of a call to its claims.
///
/// # Errors
/// The kubelet's error if a claim failed, or has no answer.
pub(crate) fn check<T>(
    call: &str,
    requested: &[Claim],
    answers: ClaimResults<T>,
) -> Result<Vec<(Key, T)>, String> {
    let mut found = Vec::new();
    for (uid, answer) in answers {
        let Some(claim) = requested.iter().find(|claim| claim.uid == uid) else {
            return Err(format!("{call} returned result for unknown claim UID {uid}"));
        };
        match answer {
            Ok(answer) => found.push((claim.key(), answer)),
            Err(error) => {
                return Err(format!("{call} failed for ResourceClaim {}: {error}", claim.name));
            }
        }
    }
    match requested.len().saturating_sub(found.len()) {
        0 => Ok(found),
        skipped => Err(format!("{call} skipped {skipped} ResourceClaims")),
    }
}

#[cfg(test)]
mod tests;
