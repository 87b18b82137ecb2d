"""Which domain an example of a store belongs to: the feature that says it, and its values."""

import dataclasses
from collections.abc import Mapping, Sequence

from tff_agnostic.data.store import Store
from tff_agnostic.data.store_format import DOMAIN, Feature
from tff_agnostic.settings import setting
from tff_agnostic.tasks.stored import DomainsOf, domains_by_name, stored_domains
from tff_agnostic.tasks.stored_values import distinct_values


@dataclasses.dataclass(frozen=True)
class DomainOptions:
    """The option of tasks whose domains are whatever a store says."""

    domain_feature: str = setting(
        DOMAIN,
        "Feature of the store that says an example's domain: domain, as it was imported, or any "
        "other text or whole number, such as type of a store of Stack Exchange.",
    )


@dataclasses.dataclass(frozen=True)
class StoredDomains:
    """The domains of a task, as a store says them.

    Attributes:
        names: Their names, in the order of their ids.
        feature: Name of the feature that says an example's domain.
        kind: That feature.
    """

    names: tuple[str, ...]
    feature: str = DOMAIN
    kind: Feature = Feature("string")

    @property
    def are_the_stores(self) -> bool:
        """Whether they are what the store counts by client."""
        return self.feature == DOMAIN

    @property
    def features(self) -> Mapping[str, Feature]:
        """What has to be parsed of an example to know its domain."""
        return {self.feature: self.kind}

    def of_examples(self, store: Store) -> DomainsOf:
        """Returns the function that looks up the domain of each example."""
        return domains_by_name(self.names, store.path, self.feature)


def chosen_domains(store: Store, feature: str, task: str, splits: Sequence[str]) -> StoredDomains:
    """Returns the domains that --TASK_domain_feature chooses.

    Names of other features than "domain" are all values that it has; see `distinct_values`.

    Args:
        store: The store.
        feature: Name of the feature.
        task: Name of the task, for messages.
        splits: Names of the splits that the task reads.

    Raises:
        UserError: If the store has no such feature, or its values are no domains.
    """
    if feature == DOMAIN:
        return StoredDomains(stored_domains(store))
    flag = f"--{task}_domain_feature"
    names = distinct_values(store, feature, splits, flag, "domains")
    return StoredDomains(names, feature, store.description.features[feature])
