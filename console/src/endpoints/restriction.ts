import { type Json, isObject } from '@/api/json';
import {
  add,
  NotUnderstood,
  type Path,
  put,
  remove,
  valueOf,
} from './policy-text';

export { NotUnderstood } from './policy-text';

const LISTS = ['allow', 'deny', 'ip_policies'] as const;
const PHASES = ['on_tcp_connect', 'on_http_request', 'on_http_response'];
const TYPE = 'restrict-ips';
const NAME = 'restrict by IP';
/** All addresses. A form with denied addresses only means that the others may pass, and the action needs these in its list. */
const EVERYONE = ['0.0.0.0/0', '::/0'];

export type Lists = Record<(typeof LISTS)[number], string[]>;

/** One `restrict-ips` action of a policy. */
export interface Restriction {
  phase: string;
  /** The name of its rule, or its number. */
  rule: string;
  expressions: string[];
  lists: Lists;
  /** Why the form does not change it; empty if it does. */
  reason: string;
  /** The action in the policy. */
  path: Path;
}

function strings(value: Json | undefined, what: string): string[] {
  if (value === undefined || value === null) return [];
  if (
    !Array.isArray(value) ||
    !value.every((one) => typeof one === 'string' || typeof one === 'boolean')
  )
    throw new NotUnderstood(`The policy has no list of texts in ${what}.`);
  return value.map(String);
}

function list(value: Json | undefined, what: string): Json[] {
  if (value === undefined || value === null) return [];
  if (!Array.isArray(value))
    throw new NotUnderstood(`The policy has no list in ${what}.`);
  return value;
}

function reasonOf(
  expressions: string[],
  lists: Lists,
  enforce: Json | undefined,
): string {
  if (expressions.length > 0)
    return 'it applies only if its expressions are true';
  if (enforce !== undefined && enforce !== null && enforce !== true)
    return 'it is not enforced';
  if (
    Object.values(lists)
      .flat()
      .some((one) => one.includes('${'))
  )
    return 'it computes addresses';
  return '';
}

/** The restrictions of a policy, in the order in which they run. */
export function restrictionsOf(text: string): Restriction[] {
  const root = valueOf(text) ?? {};
  if (!isObject(root))
    throw new NotUnderstood('The policy is no object with phases.');
  const unknown = Object.keys(root).find((key) => !PHASES.includes(key));
  if (unknown !== undefined)
    throw new NotUnderstood(`The policy has an unknown phase: ${unknown}.`);
  const found: Restriction[] = [];
  for (const phase of PHASES) {
    for (const [index, rule] of list(root[phase], phase).entries()) {
      const here = `rule ${index + 1} of ${phase}`;
      if (!isObject(rule))
        throw new NotUnderstood(`The policy has no object in ${here}.`);
      const expressions = strings(
        rule.expressions,
        `the expressions of ${here}`,
      );
      for (const [number, action] of list(
        rule.actions,
        `the actions of ${here}`,
      ).entries()) {
        if (!isObject(action) || typeof action.type !== 'string')
          throw new NotUnderstood(
            `The policy has an action without a type in ${here}.`,
          );
        if (action.type !== TYPE) continue;
        const config = action.config;
        if (!isObject(config))
          throw new NotUnderstood(
            `The policy has a ${TYPE} action without a configuration in ${here}.`,
          );
        const lists = Object.fromEntries(
          LISTS.map((key) => [key, strings(config[key], `${key} of ${here}`)]),
        ) as Lists;
        const path = [phase, index, 'actions', number];
        found.push({
          phase,
          rule:
            typeof rule.name === 'string' && rule.name
              ? rule.name
              : `rule ${index + 1}`,
          expressions,
          lists,
          reason: reasonOf(expressions, lists, config.enforce),
          path,
        });
      }
    }
  }
  return found;
}

/** Whether a restriction lets no client pass. */
export function admitsNone({ allow, ip_policies: policies }: Lists): boolean {
  return allow.length === 0 && policies.length === 0;
}

/** What the form shows: without an allowed address, all are allowed. */
export function shown(lists: Lists): Lists {
  const isEveryone =
    lists.allow.length === EVERYONE.length &&
    EVERYONE.every((one) => lists.allow.includes(one));
  return isEveryone && lists.ip_policies.length === 0
    ? { ...lists, allow: [] }
    : lists;
}

/** What the policy gets of what the form shows. */
export function meant(lists: Lists): Lists {
  return admitsNone(lists) && lists.deny.length > 0
    ? { ...lists, allow: EVERYONE }
    : lists;
}

/** The restriction that the form changes, if there is one; refuses a policy whose restrictions it cannot change. */
function only(text: string): Restriction | undefined {
  const [restriction, ...others] = restrictionsOf(text);
  if (others.length > 0)
    throw new NotUnderstood(
      `The policy has ${others.length + 1} restrictions.`,
    );
  if (restriction?.reason)
    throw new NotUnderstood(
      `The policy has a restriction that this form does not change: ${restriction.reason}.`,
    );
  return restriction;
}

/** The policy with these lists in its restriction. A new one is the first rule of the phase, so that nothing comes before it. */
export function withRestriction(
  text: string,
  phase: string,
  lists: Lists,
): string {
  const restriction = only(text);
  if (restriction)
    return changed(
      text,
      [...restriction.path, 'config'],
      restriction.lists,
      lists,
    );
  const config = Object.fromEntries(
    LISTS.filter((key) => lists[key].length > 0).map((key) => [
      key,
      lists[key],
    ]),
  );
  const rule = { name: NAME, actions: [{ type: TYPE, config }] };
  const root = valueOf(text) ?? {};
  const rules = isObject(root) ? root[phase] : undefined;
  if (Array.isArray(rules) && rules.length > 0)
    return add(text, [phase], rule, 'first');
  return put(rules === undefined ? text : remove(text, [phase]), [], phase, [
    rule,
  ]);
}

/** New entries come first, so that no list is empty in between. */
function changed(
  text: string,
  config: Path,
  before: Lists,
  after: Lists,
): string {
  let now = text;
  for (const key of LISTS) {
    const old = before[key];
    const fresh = after[key].filter((one) => !old.includes(one));
    if (fresh.length === 0) continue;
    if (old.length > 0)
      for (const one of fresh) now = add(now, [...config, key], one, 'last');
    else
      now = put(
        isEmptyAt(now, [...config, key]) ? remove(now, [...config, key]) : now,
        config,
        key,
        fresh,
      );
  }
  for (const key of LISTS) {
    if (after[key].length === 0 && before[key].length > 0)
      now = remove(now, [...config, key]);
    else {
      for (const index of [...before[key].keys()].reverse()) {
        if (!after[key].includes(before[key][index] ?? ''))
          now = remove(now, [...config, key, index]);
      }
    }
  }
  return now;
}

function isEmptyAt(text: string, path: Path): boolean {
  return (
    path.reduce<Json | undefined>(
      (value, key) => (value as { [key: string]: Json } | undefined)?.[key],
      valueOf(text),
    ) !== undefined
  );
}

/** The policy without its restriction, and without a rule or phase that is empty then; an empty text if nothing is left. */
export function withoutRestriction(text: string): string {
  const restriction = only(text);
  if (!restriction) return text;
  const { path } = restriction;
  const [phase = '', rule = 0] = path;
  const rules = (valueOf(text) as { [key: string]: Json[] })[phase] ?? [];
  const actions = (rules[Number(rule)] as { actions: Json[] }).actions;
  const now = remove(
    text,
    actions.length > 1 ? path : rules.length > 1 ? [phase, rule] : [phase],
  );
  const left = valueOf(now);
  return (left === null ||
    (isObject(left) && Object.keys(left).length === 0)) &&
    !/(^|\s)#/.test(now)
    ? ''
    : now;
}
