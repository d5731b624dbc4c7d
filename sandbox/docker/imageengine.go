package docker

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// ImageEngine is an engine as a source of images: those it has and those it
// builds. It creates no container. The caller must close it. It is safe for
// concurrent use.
type ImageEngine struct{ connection }

var _ images.Engine = (*ImageEngine)(nil)

// NewImageEngine finds the engine at host or, if that is "", like [New] by the
// environment and the docker command's configuration. It does not contact the
// engine.
func NewImageEngine(host string, getenv func(string) string) (*ImageEngine, error) {
	e, err := resolveEndpoint(host, getenv)
	if err != nil {
		return nil, fmt.Errorf("find engine: %w", err)
	}
	return &ImageEngine{connection{endpoint: e, times: defaultDeadlines()}}, nil
}

// Check returns an error if the engine does not answer.
func (e *ImageEngine) Check(ctx context.Context) error {
	_, err := e.connect(ctx)
	return err
}

func (e *ImageEngine) connect(ctx context.Context) (*remote, error) {
	return e.connectWith(ctx, func(r *remote) error {
		_, err := r.version(ctx) // shows whether the engine accepts our API version
		return err
	})
}

// ImageID implements [images.Engine].
func (e *ImageEngine) ImageID(ctx context.Context, name string) (string, error) {
	r, err := e.connect(ctx)
	if err != nil {
		return "", err
	}
	found, err := r.findImage(ctx, name)
	if err != nil {
		return "", asImageError(err)
	}
	return found.ID, nil
}

// ImageConfig returns the configuration of an image that the engine has. If it
// has none of that name, the error wraps [images.ErrNotFound].
func (e *ImageEngine) ImageConfig(ctx context.Context, name string) (images.Config, error) {
	r, err := e.connect(ctx)
	if err != nil {
		return images.Config{}, err
	}
	found, err := r.findImage(ctx, name)
	if err != nil {
		return images.Config{}, asImageError(err)
	}
	if found.Config == nil {
		return images.Config{}, nil
	}
	return convertConfig(found.Config)
}

// Save implements [images.Engine]. Cancelling ctx ends the archive.
func (e *ImageEngine) Save(ctx context.Context, id string) (io.ReadCloser, error) {
	r, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	// Docker 20.10 answers with an internal error if it lacks the image.
	if _, err := r.findImage(ctx, id); err != nil {
		return nil, asImageError(err)
	}
	archive, err := r.engine.ImageSave(ctx, []string{id})
	if err != nil {
		return nil, classifyError(ctx, "save image "+id, err)
	}
	return archive, nil
}

// asImageError wraps a missing image's error in [images.ErrNotFound].
func asImageError(err error) error {
	if errors.Is(err, sandbox.ErrNotFound) {
		return fmt.Errorf("%w: %w", images.ErrNotFound, err)
	}
	return err
}
