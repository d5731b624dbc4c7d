package sandbox

import (
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/images"
)

// ImageError wraps an error of package images in its class of this package, for
// errors of a backend's Create. It returns other errors, such as a
// cancellation, as they are.
func ImageError(err error) error {
	for _, class := range []struct{ from, to error }{
		{images.ErrRefused, ErrInvalid},
		{images.ErrDigest, ErrInvalid},
		{images.ErrInvalid, ErrInvalid},
		{images.ErrUnsupported, ErrUnsupported},
		{images.ErrNotFound, ErrNotFound},
		{images.ErrUnauthorized, ErrUnavailable},
		{images.ErrUnreachable, ErrUnavailable},
	} {
		if errors.Is(err, class.from) && !errors.Is(err, class.to) {
			return fmt.Errorf("%w: %w", class.to, err)
		}
	}
	return err
}
