package sandbox

import (
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/images"
)

// ImageError gives an error of package images its class of this contract, for
// what a backend's Create returns. Others, such as a cancellation, pass.
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
