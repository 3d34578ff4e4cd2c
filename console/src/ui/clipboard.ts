/** Copies a text; answers whether the browser allowed it. */
export async function toClipboard(value: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(value);
    return true;
  } catch {
    // Plain HTTP has no clipboard: what is selected can still be copied.
    const area = document.createElement('textarea');
    area.value = value;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}
