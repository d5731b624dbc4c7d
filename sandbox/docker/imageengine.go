package docker

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/docker/docker/api/types/image"

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
	_, found, err := e.findImage(ctx, name)
	return found.ID, err
}

// ImageConfig returns the configuration of an image that the engine has. If it
// has none of that name, the error wraps [images.ErrNotFound].
func (e *ImageEngine) ImageConfig(ctx context.Context, name string) (images.Config, error) {
	_, found, err := e.findImage(ctx, name)
	if err != nil || found.Config == nil {
		return images.Config{}, err
	}
	return convertConfig(found.Config)
}

// Save implements [images.Engine]. Cancelling ctx ends the archive.
func (e *ImageEngine) Save(ctx context.Context, id string) (io.ReadCloser, error) {
	// Docker 20.10 answers with an internal error if it lacks the image.
	r, _, err := e.findImage(ctx, id)
	if err != nil {
		return nil, err
	}
	archive, err := r.engine.ImageSave(ctx, []string{id})
	if err != nil {
		return nil, classifyError(ctx, "save image "+id, err)
	}
	return archive, nil
}

// findImage connects to the engine and looks an image up. If the engine has
// none of that name, the error wraps [images.ErrNotFound].
func (e *ImageEngine) findImage(ctx context.Context, name string) (*remote, image.InspectResponse, error) {
	r, err := e.connect(ctx)
	if err != nil {
		return nil, image.InspectResponse{}, err
	}
	found, err := r.findImage(ctx, name)
	if errors.Is(err, sandbox.ErrNotFound) {
		err = fmt.Errorf("%w: %w", images.ErrNotFound, err)
	}
	return r, found, err
}
