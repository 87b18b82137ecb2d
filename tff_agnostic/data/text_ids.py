"""The ids of texts, where data is; models, which data build on, need them as well."""

from tff_agnostic.text_ids import TokenIds

__all__ = ["TokenIds"]
