import {
  type InfiniteData,
  useInfiniteQuery,
  useQuery,
  useQueryClient,
} from '@tanstack/react-query';
import { useEffect, useMemo } from 'react';
import type { JsonObject } from '@/api/json';
import type { Resource } from '@/api/model';
import { type ListPageData, listAt, listQuery, PAGE } from './queries';

/** Later pages are larger: the first one decides when the page shows something. */
const LATER = 100;
const EVERY_MS = 5000;

/**
 * The rows so far with the newest page renewed: what is new is in front, what was deleted among the newest is gone.
 * `undefined` if the two have nothing in common, because more was created than fits on a page.
 */
export function withHead(
  rows: JsonObject[],
  head: ListPageData,
): JsonObject[] | undefined {
  const last = head.objects.at(-1);
  if (!head.next || !last) return head.objects;
  const at = rows.findIndex(({ id }) => id === last.id);
  return at < 0 ? undefined : [...head.objects, ...rows.slice(at + 1)];
}

export interface More {
  has: boolean;
  isLoading: boolean;
  error: Error | null;
  load: () => void;
}

/** The objects of a resource, the newest first: the first page is renewed every five seconds, others follow on demand. */
export function useList(resource: Resource, filter: string | undefined) {
  const client = useQueryClient();
  const search = { filter };
  const head = listQuery(resource, search);
  const pages = useInfiniteQuery({
    queryKey: [resource.name, 'pages', search],
    initialPageParam: undefined as string | undefined,
    queryFn: async ({ pageParam, signal }) => {
      const page = await listAt(
        `/${resource.name}`,
        resource.listKey,
        { filter, before: pageParam },
        pageParam ? LATER : PAGE,
        signal,
      );
      if (!pageParam) client.setQueryData(head.queryKey, page);
      return page;
    },
    getNextPageParam: (page) => page.next,
    staleTime: Infinity,
    refetchOnWindowFocus: false,
  });
  const newest = useQuery({
    ...head,
    enabled: pages.isSuccess,
    refetchInterval: EVERY_MS,
  });
  const loaded = useMemo(
    () =>
      (pages.data as InfiniteData<ListPageData> | undefined)?.pages.flatMap(
        ({ objects }) => objects,
      ),
    [pages.data],
  );
  const joined = useMemo(
    () => (loaded && newest.data ? withHead(loaded, newest.data) : loaded),
    [loaded, newest.data],
  );
  const isApart = joined === undefined && loaded !== undefined;
  const { refetch } = pages;
  useEffect(() => {
    if (isApart) void refetch();
  }, [isApart, refetch]);
  const more: More = {
    has: pages.hasNextPage,
    isLoading: pages.isFetchingNextPage,
    error: pages.isFetchNextPageError ? pages.error : null,
    load: () => void pages.fetchNextPage({ cancelRefetch: false }),
  };
  const error = pages.isFetchNextPageError
    ? null
    : (pages.error ?? newest.error);
  const retry = () => void (pages.error ? pages.refetch() : newest.refetch());
  return {
    objects: joined ?? loaded,
    isPending: pages.isPending,
    error,
    retry,
    more,
  };
}
