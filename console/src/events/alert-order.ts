import { type JsonObject, text } from '@/api/json';

const SEVERITIES = ['critical', 'warning', 'info'];

/** The order that begins with what needs attention: what fires, by how serious it is, and then what is resolved. */
export const rankOfAlert = ({ state, severity }: JsonObject): number =>
  state === 'firing' ? SEVERITIES.indexOf(text(severity)) : SEVERITIES.length;
