package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/system"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

type deadlines struct {
	ask, attach, create, start, remove, load time.Duration
	transfer                                 time.Duration // of a whole image, and a build
	// cancel is how long a call that creates something may continue after its
	// caller gave up. Breaking it off would leave open whether it succeeded.
	cancel time.Duration
	loss   time.Duration // for finding the cause of a loss
}

// defaultDeadlines returns about a hundred times what an idle machine takes
// (create 20 ms, start 100 ms, remove 86 ms), so that a loaded engine passes
// and a stopped one is noticed.
func defaultDeadlines() deadlines {
	return deadlines{
		ask: 10 * time.Second, attach: 10 * time.Second, create: 30 * time.Second, start: 30 * time.Second, remove: 30 * time.Second,
		load: time.Minute, transfer: time.Hour, cancel: 5 * time.Second, loss: 5 * time.Second,
	}
}

// remote is an engine whose calls have deadlines and return the sandbox's
// errors.
type remote struct {
	engine   engine
	endpoint endpoint
	api      string // the negotiated version
	deadlines
}

func (r *remote) info(ctx context.Context) (system.Info, error) {
	return callWithin(ctx, r.ask, "ask the engine", r.engine.Info)
}

func (r *remote) version(ctx context.Context) (types.Version, error) {
	return callWithin(ctx, r.ask, "ask the engine", r.engine.ServerVersion)
}

func (r *remote) findImage(ctx context.Context, name string) (image.InspectResponse, error) {
	return callWithin(ctx, r.ask, "look up image "+name, func(ctx context.Context) (image.InspectResponse, error) {
		return r.engine.ImageInspect(ctx, name)
	})
}

func (r *remote) importImage(ctx context.Context, content io.Reader, name, change string) error {
	return callNoResult(ctx, r.load, "import image "+name, func(ctx context.Context) error {
		answer, err := r.engine.ImageImport(ctx, image.ImportSource{Source: content, SourceName: "-"}, name, image.ImportOptions{Changes: []string{change}})
		if err != nil {
			return err
		}
		defer func() { _ = answer.Close() }()
		// The answer only shows progress; the next lookup decides.
		_, err = io.Copy(io.Discard, io.LimitReader(answer, 1<<20))
		return err
	})
}

func (r *remote) listImages(ctx context.Context, which ...filters.KeyValuePair) ([]image.Summary, error) {
	return callWithin(ctx, r.ask, "list images", func(ctx context.Context) ([]image.Summary, error) {
		return r.engine.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(which...)})
	})
}

// removeImage removes an image, or only the given name if it has others. With
// parents it also removes the images it was made from, unless something else
// needs them. If a container uses the image, it stays and gone is false.
func (r *remote) removeImage(ctx context.Context, name string, parents bool) (gone bool, err error) {
	return callWithin(ctx, r.remove, "remove image", func(ctx context.Context) (bool, error) {
		_, err := r.engine.ImageRemove(ctx, name, image.RemoveOptions{PruneChildren: parents})
		if err == nil || errdefs.IsConflict(err) || errdefs.IsNotFound(err) {
			return err == nil, nil
		}
		// Another client may be removing it. Docker 20.10 then answers with an
		// internal error ("unrecognized image ID").
		if _, lookup := r.engine.ImageInspect(ctx, name); errdefs.IsNotFound(lookup) {
			return false, nil
		}
		return false, err
	})
}

func (r *remote) createContainer(ctx context.Context, asked request) (container.CreateResponse, error) {
	return callToEnd(ctx, r.create, r.cancel, "create container", func(ctx context.Context) (container.CreateResponse, error) {
		return r.engine.ContainerCreate(ctx, asked.config, asked.host, nil, nil, asked.name)
	})
}

func (r *remote) startContainer(ctx context.Context, id string) error {
	return callNoResult(ctx, r.start, "start container", func(ctx context.Context) error {
		return r.engine.ContainerStart(ctx, id, container.StartOptions{})
	})
}

func (r *remote) inspectContainer(ctx context.Context, id string) (container.InspectResponse, error) {
	return callWithin(ctx, r.ask, "inspect container", func(ctx context.Context) (container.InspectResponse, error) {
		return r.engine.ContainerInspect(ctx, id)
	})
}

// listContainers returns every container with Caisson's labels. A restarted
// engine may list as dead a container that it has removed, until its next
// start, and any engine lists one as being removed for a moment after it is
// gone. Those are left out.
func (r *remote) listContainers(ctx context.Context) ([]container.Summary, error) {
	list, err := callWithin(ctx, r.ask, "list containers", func(ctx context.Context) ([]container.Summary, error) {
		return r.engine.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", ownership.LabelSchema))})
	})
	return slices.DeleteFunc(list, func(c container.Summary) bool {
		if c.State != container.StateDead && c.State != container.StateRemoving {
			return false
		}
		_, err := r.inspectContainer(ctx, c.ID)
		return errors.Is(err, sandbox.ErrNotFound)
	}), err
}

func withDeadline(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w (%s)", errDeadline, limit))
}
