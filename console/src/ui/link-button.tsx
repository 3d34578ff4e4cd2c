import { type LinkProps, useLink } from '@/routing/link';
import { ButtonAnchor, type ButtonLook } from './button';

/** A link inside the console that looks like a button. */
export function LinkButton<P extends string>({
  variant,
  color,
  size,
  leftSection,
  children,
  ...link
}: Omit<LinkProps<P>, keyof ButtonLook> & ButtonLook) {
  return (
    <ButtonAnchor
      {...useLink(link as unknown as LinkProps<P>)}
      variant={variant}
      color={color}
      size={size}
      leftSection={leftSection}
    >
      {children}
    </ButtonAnchor>
  );
}
