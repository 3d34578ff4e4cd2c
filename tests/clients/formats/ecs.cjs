// Validates events, one a line, against the fields, types and allowed values of the Elastic Common Schema that
// `@elastic/ecs` publishes. Prints `valid: N`, or what is wrong with each line, and then exits with 1. The first
// argument is the folder of that package, the second the file.
'use strict';
const fs = require('fs');
const net = require('net');
const path = require('path');

const { EcsFlat, EcsVersion } = require(path.join(process.argv[2], 'node_modules/@elastic/ecs'));

const isText = (value) => typeof value === 'string';
const TYPES = {
  boolean: (value) => typeof value === 'boolean',
  constant_keyword: isText,
  date: (value) => isText(value) && /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$/.test(value) && !Number.isNaN(Date.parse(value)),
  float: (value) => typeof value === 'number',
  ip: (value) => isText(value) && net.isIP(value) !== 0,
  keyword: isText,
  long: (value) => Number.isInteger(value),
  match_only_text: isText,
  text: isText,
  wildcard: isText,
};

function* leaves(value, prefix) {
  for (const [name, inner] of Object.entries(value)) {
    const at = prefix ? `${prefix}.${name}` : name;
    if (inner && typeof inner === 'object' && !Array.isArray(inner)) yield* leaves(inner, at);
    else yield [at, inner];
  }
}

function* problems(event) {
  for (const required of ['@timestamp', 'ecs.version']) {
    if (![...leaves(event, '')].some(([name]) => name === required)) yield `no ${required}`;
  }
  if (event.ecs?.version !== EcsVersion) yield `the version is ${event.ecs?.version}, not ${EcsVersion}`;
  for (const [name, value] of leaves(event, '')) {
    const field = EcsFlat[name];
    if (!field) {
      yield `no field ${name}`;
      continue;
    }
    const isList = (field.normalize ?? []).includes('array');
    if (isList !== Array.isArray(value)) yield `${name} is ${isList ? 'not ' : ''}a list`;
    const isType = TYPES[field.type] ?? (() => false);
    for (const one of [value].flat()) {
      if (!isType(one)) yield `${name} is no ${field.type}: ${String(JSON.stringify(one)).slice(0, 200)}`;
      if (field.allowed_values && !field.allowed_values.some((allowed) => allowed.name === one)) yield `${name} must not be ${one}`;
    }
  }
  const categories = EcsFlat['event.category'].allowed_values.filter(({ name }) => event.event.category.includes(name));
  for (const type of event.event.type) {
    if (!categories.some((category) => category.expected_event_types.includes(type))) {
      yield `the type ${type} is in none of the categories ${event.event.category}`;
    }
  }
}

const wrong = new Map();
const lines = fs.readFileSync(process.argv[3], 'utf8').split('\n').filter(Boolean);
for (const line of lines) {
  const event = JSON.parse(line);
  for (const problem of problems(event)) wrong.set(`${event.event?.action}: ${problem}`, line);
}
for (const [problem, line] of [...wrong].slice(0, 40)) console.log(`${problem}\n    ${line.slice(0, 1500)}`);
console.log(wrong.size ? `invalid: ${wrong.size}` : `valid: ${lines.length}`);
process.exit(wrong.size ? 1 : 0);
