import type { Tone } from '@/ui/page';

/** Overload levels of an edge. */
export const LEVELS: { label: string; tone: Tone }[] = [
  { label: 'No overload', tone: 'ok' },
  { label: 'Busy', tone: 'quiet' },
  { label: 'Tight', tone: 'warn' },
  { label: 'Full', tone: 'bad' },
];
