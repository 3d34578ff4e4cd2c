import { Checkbox } from '@mantine/core';
import { ApiError } from '@/api/error';
import type { Operation } from '@/api/model';

/** The last admin, and the last way in: refused unless it is forced. */
const CODES = ['ERR_NGROK_644', 'ERR_NGROK_660'];

/** Whether the server refused a change because somebody would be locked out, and the change can be forced. */
export function locksOut(operation: Operation, error: Error | null): boolean {
  return (
    error instanceof ApiError &&
    CODES.includes(error.code ?? '') &&
    operation.query.some((one) => one.name === 'force')
  );
}

/** Asks whether to make such a change nevertheless. */
export function LockOut({
  checked,
  onChange,
}: {
  checked: boolean;
  onChange: (checked: boolean) => void;
}) {
  return (
    <Checkbox
      label="Make the change nevertheless"
      description="Somebody is locked out by it, maybe you. The message above says how to get in again, on the server."
      checked={checked}
      onChange={(event) => onChange(event.currentTarget.checked)}
    />
  );
}

/** The path of a change that may lock out. */
export function forced(path: string, isForced: boolean): string {
  return isForced ? `${path}?force=true` : path;
}
