"""The store agrees with the reference model, step by step (`llog.testing.model_check`)."""

from __future__ import annotations

import pytest

from llog.stores.metadata.port import MetadataStore
from llog.testing.metadata_contract.base import SOAK, Claims
from llog.testing.model_check import STEPS, check_agreement

SEEDS = range(40) if SOAK else range(4)


class ModelClaims(Claims):
    @pytest.mark.parametrize("seed", SEEDS)
    async def test_store_and_model_agree_step_by_step(self, store: MetadataStore, root: str, seed: int) -> None:
        await check_agreement(store, root, seed, 400 if SOAK else STEPS)
