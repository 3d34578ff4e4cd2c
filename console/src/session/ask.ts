import { connection } from '@/api/connection';
import { LostServerError } from '@/api/error';

const HEADERS = {
  'content-type': 'application/json',
  'x-culvert-console': '1',
};

/** A call about the session itself. */
export async function ask(
  method: string,
  body?: string,
  path = '/console/session',
): Promise<Response> {
  try {
    return await fetch(path, {
      method,
      headers: HEADERS,
      ...(body === undefined ? {} : { body }),
    });
  } catch {
    connection.lose();
    throw new LostServerError();
  }
}
