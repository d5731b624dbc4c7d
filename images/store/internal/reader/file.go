package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/caisson-run/caisson/images"
)

// OpenRegular opens name for reading if it is a regular file. It does not block
// on a pipe. If root is not nil, name is relative to root and can't leave it.
func OpenRegular(root *os.Root, name string) (*os.File, error) {
	var f *os.File
	var err error
	if root != nil {
		f, err = root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	} else {
		f, err = os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is not a regular file", images.ErrInvalid, name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

type contextReader struct {
	ctx context.Context // for one read
	r   io.Reader
}

// NewContextReader returns a reader of r that fails when ctx is done.
func NewContextReader(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

func (c contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
