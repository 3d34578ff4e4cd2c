import { useEffect, useRef } from 'react';
import { ApiError } from '@/api/error';
import { Codes } from '@/ui/states';
import ui from '@/ui/ui.module.css';

/** Why the server refused a form. It comes into sight when it appears. */
export function FormError({ error }: { error: Error | null }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (error) box.current?.scrollIntoView({ block: 'center' });
  }, [error]);
  return error ? (
    <div ref={box} className={ui.failure} role="alert">
      <p>{error.message}</p>
      {error instanceof ApiError ? <Codes error={error} /> : null}
    </div>
  ) : null;
}
