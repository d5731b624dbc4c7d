package sandbox

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/caisson-run/caisson/images"
)

func TestImageError(t *testing.T) {
	for from, to := range map[error]error{
		images.ErrInvalid: ErrInvalid, images.ErrRefused: ErrInvalid, images.ErrDigest: ErrInvalid, images.ErrNotFound: ErrNotFound,
		images.ErrUnsupported: ErrUnsupported, images.ErrUnauthorized: ErrUnavailable, images.ErrUnreachable: ErrUnavailable,
		context.Canceled: context.Canceled,
	} {
		err := ImageError(fmt.Errorf("get image x: %w", from))
		if !errors.Is(err, from) || !errors.Is(err, to) {
			t.Errorf("%v becomes %v, want %v too", from, err, to)
		}
	}
	if ImageError(nil) != nil {
		t.Error("nil is an error")
	}
}
