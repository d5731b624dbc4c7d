package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/build"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// The label and name of images that were built for build:DIR. The tag names the
// directory. A later build of it takes the name, and the previous image is
// removed.
const (
	labelBuilt = "io.caisson.build"
	builtName  = "caisson/build"
)

// Build is [images.Engine]'s, with the engine's classic builder, which every
// engine from Docker 20.10 on has: RUN steps have no network and the base image
// is pulled only if the engine lacks it. The image is named after dir, so that
// the next build finds its steps done; [ImageEngine.Prune] and sweeps remove it.
func (e *ImageEngine) Build(ctx context.Context, dir string, progress io.Writer) (string, error) {
	r, err := e.connect(ctx)
	if err != nil {
		return "", err
	}
	source, err := openContext(dir)
	if err != nil {
		return "", err
	}
	defer source.close()
	name := builtTag(dir)
	before, err := r.findImage(ctx, name)
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return "", err
	}
	output := &buildOutput{progress: progress}
	if err := r.buildImage(ctx, source, name, output); err != nil {
		return "", errors.Join(err, r.removeUnfinished(ctx, output.made))
	}
	if before.ID != "" && before.ID != output.id {
		// Refused by the engine if it has another name, or a container uses it.
		if _, err := r.removeImage(ctx, before.ID, true); err != nil {
			return "", err
		}
	}
	return output.id, nil
}

// builtTag is the name of what is built of a directory.
func builtTag(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return builtName + ":" + hex.EncodeToString(sum[:16])
}

// buildImage sends the directory and follows the builder to its end.
func (r *remote) buildImage(ctx context.Context, source *buildContext, name string, output *buildOutput) error {
	ctx, cancel := withDeadline(ctx, r.transfer)
	defer cancel()
	read, write := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := source.writeTar(ctx, write)
		write.CloseWithError(err)
		sent <- err
	}()
	answer, err := r.engine.ImageBuild(ctx, read, build.ImageBuildOptions{
		Version: build.BuilderV1, Tags: []string{name}, Dockerfile: dockerfile, NetworkMode: noNetwork,
		Remove: true, ForceRemove: true, Labels: map[string]string{labelBuilt: "true"},
	})
	read.CloseWithError(errUnread)
	if ours := <-sent; ours != nil && !errors.Is(ours, errUnread) && context.Cause(ctx) == nil {
		err = errors.Join(ours, closeBody(answer.Body))
		return err // and not that the engine got half an archive
	}
	switch {
	case errdefs.IsInvalidArgument(err):
		return fmt.Errorf("%w: the builder says: %w", images.ErrInvalid, err)
	case err != nil:
		return classifyError(ctx, "build image", err)
	}
	err = errors.Join(output.readLines(answer.Body), closeBody(answer.Body))
	if context.Cause(ctx) != nil {
		return classifyError(ctx, "build image", err)
	}
	return err
}

func closeBody(body io.Closer) error {
	if body == nil {
		return nil
	}
	return body.Close()
}

// errUnread is the sender's error if the engine has answered before it read
// everything.
var errUnread = errors.New("the engine reads no more")

// removeUnfinished removes the images of the steps of a build that failed,
// which nothing names: the last first, since it is made from the others. The
// container of a step that was broken off holds them until the engine has
// removed it. What something else uses by then stays.
func (r *remote) removeUnfinished(ctx context.Context, made []string) error {
	ctx, cancel := withDeadline(context.WithoutCancel(ctx), r.ask)
	defer cancel()
	var errs []error
	for _, id := range slices.Backward(made) {
		for {
			gone, err := r.removeImage(ctx, id, false)
			if err == nil && !gone && r.hasImage(ctx, id) {
				select {
				case <-time.After(50 * time.Millisecond):
					continue
				case <-ctx.Done():
				}
			}
			errs = append(errs, err)
			break
		}
	}
	return errors.Join(errs...)
}

func (r *remote) hasImage(ctx context.Context, id string) bool {
	_, err := r.findImage(ctx, id)
	return err == nil
}
