import { useCallback, useEffect, useRef, useState } from 'react';
import { api, type State } from './api';

const EVERY_MS = 1000;

/** New requests in front of the known ones, without those that the agent no longer has. */
function merged(known: State | undefined, now: State): State {
  const before = known?.run === now.run ? known.requests : [];
  const first = now.requests[now.requests.length - 1]?.id ?? Infinity;
  const kept = before.filter(
    (it) => now.oldest !== null && it.id >= now.oldest && it.id < first,
  );
  return { ...now, requests: [...now.requests, ...kept] };
}

/** The agent's state, which is read every second while the page is visible. */
export function useStateOfAgent() {
  const [state, setState] = useState<State>();
  const [isLost, setLost] = useState(false);
  const known = useRef<State>(undefined);
  const read = useCallback(async () => {
    try {
      let now = await api.state(known.current?.requests[0]?.id ?? 0);
      // A new run counts from one again.
      if (known.current && known.current.run !== now.run)
        now = await api.state(0);
      known.current = merged(known.current, now);
      setState(known.current);
      setLost(false);
    } catch {
      setLost(true);
    }
  }, []);
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    const look = async () => {
      if (document.visibilityState === 'visible') await read();
      if (!isOver) timer = window.setTimeout(() => void look(), EVERY_MS);
    };
    void look();
    return () => {
      isOver = true;
      window.clearTimeout(timer);
    };
  }, [read]);
  return { state, isLost, read };
}
