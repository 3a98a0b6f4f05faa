"""JSON Schemas in few words; every schema has a description."""

from __future__ import annotations

from typing import Any

JsonSchema = dict[str, Any]


def integer(description: str = "") -> JsonSchema:
    return {"type": "integer", "description": description}


def number(description: str = "") -> JsonSchema:
    return {"type": "number", "description": description}


def share(description: str = "") -> JsonSchema:
    return or_null({"type": "number", "minimum": 0, "maximum": 1, "description": description})


def string(description: str = "") -> JsonSchema:
    return {"type": "string", "description": description}


def anything(description: str = "") -> JsonSchema:
    return {"description": description}


def or_null(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}], "description": schema["description"]}


def listing(description: str, items: JsonSchema) -> JsonSchema:
    return {"type": "array", "items": items, "description": description}


def fixed_list(description: str, *items: JsonSchema) -> JsonSchema:
    return {"type": "array", "prefixItems": list(items), "minItems": len(items), "maxItems": len(items),
            "description": description}  # fmt: skip


def pair(description: str, item: JsonSchema) -> JsonSchema:
    return fixed_list(description, item, item)


def mapping(description: str, values: JsonSchema) -> JsonSchema:
    return {"type": "object", "additionalProperties": values, "description": description}


def obj(description: str, /, *optional: str, **fields: JsonSchema) -> JsonSchema:
    """An object of these fields, and no other; those named in `optional` may be missing."""
    return {
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
        "description": description,
    }


def rows(description: str, /, *optional: str, **fields: JsonSchema) -> JsonSchema:
    """A list of objects of these fields."""
    return listing(description, obj("", *optional, **fields))


def or_empty(schema: JsonSchema) -> JsonSchema:
    """An object with all its keys, or none."""
    empty = {"type": "object", "maxProperties": 0}
    return {"anyOf": [schema, empty], "description": schema["description"]}


def boolean(description: str) -> JsonSchema:
    return {"type": "boolean", "description": description}
