"""Sampling offers every field of the engine's parameters, or says why not."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from laneway.schemas import Sampling, StructuredOutput
from laneway.schemas.sampling import NOT_OFFERED


def engine_fields(name: str) -> dict[str, str]:
    """Fields and annotations of a class in vLLM's `sampling_params.py`, read without importing it."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("vllm is not installed")
    source = (Path(found.submodule_search_locations[0]) / "sampling_params.py").read_text("utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                field.target.id: ast.unparse(field.annotation)
                for field in node.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                if not field.target.id.startswith("_")
            }
    raise AssertionError(f"no class {name} in vLLM's sampling_params.py")


def test_every_engine_field_is_offered_or_declined_with_a_reason() -> None:
    """A vLLM upgrade that adds a field makes somebody decide about it."""
    known = {*Sampling.__struct_fields__, *NOT_OFFERED}
    assert set(engine_fields("SamplingParams")) - known == set()


def test_every_constraint_of_the_engine_is_offered_or_declined_with_a_reason() -> None:
    """The same for structured outputs."""
    declined = {name.partition(".")[2] for name in NOT_OFFERED if name.startswith("structured_outputs.")}
    known = {*StructuredOutput.__struct_fields__, *declined}
    assert set(engine_fields("StructuredOutputsParams")) - known == set()


def test_nothing_is_offered_that_the_engine_lacks() -> None:
    """A field here that the engine does not know would be dropped in silence."""
    assert set(Sampling.__struct_fields__) <= set(engine_fields("SamplingParams"))
    assert set(StructuredOutput.__struct_fields__) <= set(engine_fields("StructuredOutputsParams"))


def test_nothing_is_both_offered_and_declined() -> None:
    """The list of reasons stays true."""
    assert set(NOT_OFFERED).isdisjoint(Sampling.__struct_fields__)
