import { call } from '@/api/http';
import type { JsonObject } from '@/api/json';

/** A position in a text, from 1; columns count UTF-16 units. */
export interface Position {
  line: number;
  column: number;
}

export interface Range {
  start: Position;
  end: Position;
}

export interface Problem {
  range: Range;
  severity: 'error' | 'warning';
  error_code: string;
  message: string;
}

export interface Suggestion {
  label: string;
  kind: 'template' | 'field' | 'action' | 'value' | 'variable' | 'function';
  detail: string;
  doc: string;
  insert: string;
}

export interface Analysis {
  problems: Problem[];
  completions: Suggestion[];
  replaces: Range | null;
  hover: { range: Range; doc: string } | null;
}

/** The endpoint that a policy is for, as far as it is known. */
export interface Place {
  endpoint_id?: string;
  url?: string;
  upstream_url?: string;
}

/** What the server says about a policy that is being written; of a position if there is one. */
export async function analyze(
  text: string,
  place: Place,
  position?: Position,
  signal?: AbortSignal,
): Promise<Analysis> {
  const body: JsonObject = { traffic_policy: text, ...place };
  if (position) body.position = { ...position };
  const answer = await call('POST', '/traffic_policy_analysis', body, signal);
  return answer as unknown as Analysis;
}
