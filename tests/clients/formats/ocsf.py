"""Validates events, one a line, against the JSON Schemas that ocsf-json-schema makes of the released schema of OCSF.

Prints `valid: N`, or what is wrong with each line, and then exits with 1.
"""

import functools
import json
import sys

import jsonschema
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema


@functools.cache
def validator(version, class_uid):
    schemas = OcsfJsonSchemaEmbedded(get_ocsf_schema(version=version))
    name = schemas.lookup_class_name_from_uid(class_uid=class_uid)
    schema = schemas.get_class_schema(class_name=name, profiles=[])
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@functools.cache
def captions(version, class_uid):
    """The captions of the enumerations of a class, by attribute."""
    raw = get_ocsf_schema(version=version)
    of_class = next(c for c in raw["classes"].values() if c["uid"] == class_uid)
    return {
        name: {int(key): value["caption"] for key, value in attribute["enum"].items()}
        for name, attribute in of_class["attributes"].items()
        if name in ("activity_id", "severity_id", "status_id", "type_uid", "category_uid")
        and "enum" in attribute
    }


def problems(event):
    version, class_uid = event["metadata"]["version"], event["class_uid"]
    for error in validator(version, class_uid).iter_errors(event):
        yield f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
    names = captions(version, class_uid)
    if event["type_uid"] != class_uid * 100 + event["activity_id"]:
        yield f"type_uid {event['type_uid']} is not that of the activity"
    for number, name in (
        ("severity_id", "severity"),
        ("status_id", "status"),
        ("category_uid", "category_name"),
        ("type_uid", "type_name"),
    ):
        if number in names and names[number].get(event[number]) != event[name]:
            yield f"{name} is {event[name]}, not {names[number].get(event[number])}"
    if event["activity_id"] != 99 and names["activity_id"][event["activity_id"]] != event["activity_name"]:
        yield f"activity_name is {event['activity_name']}"


def main():
    count, wrong = 0, {}
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            count += 1
            for problem in problems(event):
                kind = event["unmapped"]["culvert"]["event_type"]
                wrong.setdefault((kind, problem), line)
    for (kind, problem), line in list(wrong.items())[:40]:
        print(f"{kind}: {problem}\n    {line.strip()[:1500]}")
    print(f"invalid: {len(wrong)}" if wrong else f"valid: {count}")
    sys.exit(1 if wrong else 0)


main()
