import {
  type InfiniteData,
  useInfiniteQuery,
  useQuery,
  useQueryClient,
} from '@tanstack/react-query';
import { useEffect, useMemo } from 'react';
import type { JsonObject } from '@/api/json';
import type { Resource } from '@/api/model';
import { type Rank, sortedMax, useRanked } from './rank';
import {
  allQuery,
  isSearched,
  type ListPageData,
  type ListSearch,
  listQuery,
  PAGE,
  pageOf,
} from './queries';

/** Later pages are larger: the first one decides when the page shows something. */
const LATER = 100;
const EVERY_MS = 5000;
/** A search reads all objects. */
const SEARCH_EVERY_MS = 15_000;

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
  if (at < 0) return undefined;
  // In another order than the time, an object may have moved to the front.
  const ids = new Set(head.objects.map(({ id }) => id));
  const rest = rows.slice(at + 1).filter(({ id }) => !ids.has(id));
  return [...head.objects, ...rest];
}

export interface More {
  has: boolean;
  isLoading: boolean;
  error: Error | null;
  load: () => void;
}

const NO_MORE: More = {
  has: false,
  isLoading: false,
  error: null,
  load: () => {},
};

/** All objects of a resource in the order of a column that the server does not sort by. */
function useRankedList(
  resource: Resource,
  { order, ...search }: ListSearch,
  rank: Rank | undefined,
) {
  const all = useQuery({
    ...allQuery(resource, search),
    enabled: rank !== undefined,
    refetchInterval: SEARCH_EVERY_MS,
  });
  const found = all.data?.objects;
  const most = sortedMax(rank);
  const sorted = useMemo(() => found?.slice(0, most), [found, most]);
  const objects = useRanked(sorted, rank, order?.startsWith('-') ?? false);
  return {
    objects,
    isComplete: (all.data?.isComplete ?? true) && (found?.length ?? 0) <= most,
    isPending: all.isPending,
    error: all.error,
    retry: () => void all.refetch(),
    more: NO_MORE,
  };
}

/** The objects of a resource, the newest first or in an order: the one of `rank`, or of a field. */
export function useList(
  resource: Resource,
  search: ListSearch,
  rank: Rank | undefined,
) {
  const ranked = useRankedList(resource, search, rank);
  const paged = usePagedList(resource, search, rank === undefined);
  return rank ? ranked : paged;
}

/** The first page is renewed every few seconds, others follow on demand. */
function usePagedList(
  resource: Resource,
  search: ListSearch,
  isWanted: boolean,
) {
  const client = useQueryClient();
  const head = listQuery(resource, search);
  const pages = useInfiniteQuery({
    queryKey: [resource.name, 'pages', search],
    enabled: isWanted,
    initialPageParam: undefined as string | undefined,
    queryFn: async ({ pageParam, signal }) => {
      const page = await pageOf(
        resource,
        search,
        pageParam,
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
    enabled: isWanted && pages.isSuccess,
    refetchInterval: isSearched(search) ? SEARCH_EVERY_MS : EVERY_MS,
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
    /** Whether the server read all objects to search or sort them. */
    isComplete: newest.data?.isComplete ?? true,
    isPending: pages.isPending,
    error,
    retry,
    more,
  };
}
