import type {
  AnchorHTMLAttributes,
  ButtonHTMLAttributes,
  ReactNode,
} from 'react';
import css from './button.module.css';

interface Look {
  variant?: 'filled' | 'default' | 'light' | 'outline' | 'subtle';
  color?: 'gray' | 'red';
}

export interface ButtonLook extends Look {
  size?: 'xs' | 'compact-xs' | 'compact-sm';
  fullWidth?: boolean;
  leftSection?: ReactNode;
  children: ReactNode;
}

interface ButtonProps
  extends
    ButtonLook,
    Omit<ButtonHTMLAttributes<HTMLButtonElement>, 'color' | 'children'> {
  /** What it does is under way: it cannot be pressed again. */
  loading?: boolean;
}

const looks = ({ variant = 'filled', color }: Look) => ({
  'data-variant': variant,
  ...(color ? { 'data-color': color } : {}),
});

const shape = ({ size, fullWidth, ...look }: Omit<ButtonLook, 'children'>) => ({
  className: css.button,
  ...looks(look),
  ...(size ? { 'data-size': size } : {}),
  ...(fullWidth ? { 'data-wide': true } : {}),
});

export function Button({
  variant,
  color,
  size,
  fullWidth,
  leftSection,
  loading,
  disabled,
  type,
  children,
  ...rest
}: ButtonProps) {
  return (
    <button
      {...rest}
      {...shape({ variant, color, size, fullWidth })}
      type={type === 'submit' ? 'submit' : 'button'}
      disabled={disabled || loading}
      aria-busy={loading || undefined}
    >
      {leftSection}
      {children}
    </button>
  );
}

/** A link that looks like a button. */
export function ButtonAnchor({
  variant,
  color,
  size,
  fullWidth,
  leftSection,
  children,
  ...rest
}: ButtonLook & Omit<AnchorHTMLAttributes<HTMLAnchorElement>, 'children'>) {
  return (
    <a {...rest} {...shape({ variant, color, size, fullWidth })}>
      {leftSection}
      {children}
    </a>
  );
}

/** A button with an icon in it and no words: `aria-label` says what it does. */
export function IconButton({
  variant,
  color,
  ...rest
}: Look &
  Omit<ButtonHTMLAttributes<HTMLButtonElement>, 'color'> & {
    'aria-label': string;
  }) {
  return (
    <button
      type="button"
      {...rest}
      className={css.icon}
      {...looks({ variant, color })}
    />
  );
}
