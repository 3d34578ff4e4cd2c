import { useMutation, useQueryClient } from '@tanstack/react-query';
import { api, body } from '@/api/client';
import { Failure } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { healthQuery } from './queries';

/** Sends an event of type `test` now, once. */
export function useTestEvent(id: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: async () =>
      body(
        await api.POST('/event_destinations/{id}/test', {
          params: { path: { id } },
        }),
      ),
    onSettled: () =>
      client.invalidateQueries({ queryKey: healthQuery(id).queryKey }),
  });
}

/** What became of it, in the words of the destination. */
export function TestResult({
  test,
}: {
  test: ReturnType<typeof useTestEvent>;
}) {
  if (test.error) return <Failure error={test.error} />;
  if (!test.data || test.isPending) return null;
  return test.data.delivered ? (
    <p className={ui.once} role="status">
      The destination took the test event.
    </p>
  ) : (
    <div className={ui.failure} role="alert">
      <h2>The destination did not take the test event</h2>
      <p>{test.data.error}</p>
    </div>
  );
}
