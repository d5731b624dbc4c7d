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
	"github.com/docker/docker/api/types/image"

	"github.com/caisson-run/caisson/images"
	dockerfiles "github.com/caisson-run/caisson/images/dockerfile"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
)

// The label and name of images built for build:DIR. The tag names the
// directory. The next build takes over the name, and the previous image is
// removed.
const (
	labelBuilt = "io.caisson.build"
	builtName  = "caisson/build"
)

// Build implements [images.Engine] with the classic builder, which every engine
// from Docker 20.10 on has. RUN steps have no network except the options'. Base
// images are pulled only if the engine lacks them. ADD of a URL is refused,
// even in the triggers of base images, because the engine would download it.
// The image is named after dir, so that the next build finds its steps done;
// [ImageEngine.Prune] and sweeps remove it.
func (e *ImageEngine) Build(ctx context.Context, dir string, o images.BuildOptions) (string, error) {
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
	output := &buildOutput{progress: o.Progress}
	refused, err := r.buildWithin(ctx, source, buildPlan{dir: dir, name: name, open: o.Network}, output)
	if err != nil {
		return "", &images.BuildError{Err: errors.Join(err, r.removeUnfinished(ctx, output.made)), Output: output.lastLines(), Network: o.Network != nil, Refused: refused}
	}
	if before.ID != "" && before.ID != output.id {
		// The engine refuses if it has another name, or a container uses it.
		if _, err := r.removeImage(ctx, before.ID, true); err != nil {
			return "", err
		}
	}
	return output.id, nil
}

type buildPlan struct {
	dir, name string
	// open opens the network of RUN steps; nil means none.
	open func(ctx context.Context, dir string) (*images.BuildNetwork, error)
}

// buildWithin checks the Dockerfile, opens the network for RUN steps, and
// builds. It returns what the network refused.
func (r *remote) buildWithin(ctx context.Context, source *buildContext, p buildPlan, output *buildOutput) (refused []string, err error) {
	ctx, cancel := withDeadline(ctx, r.transfer)
	defer cancel()
	info, err := r.info(ctx)
	if err != nil {
		return nil, err
	}
	runs, err := r.checkDockerfile(ctx, source.dockerfile, "linux/"+goArchitecture(info.Architecture), output)
	if err != nil {
		return nil, err
	}
	o := build.ImageBuildOptions{
		Version: build.BuilderV1, Tags: []string{p.name}, Dockerfile: dockerfile, NetworkMode: noNetwork,
		Remove: true, ForceRemove: true, Labels: map[string]string{labelBuilt: "true"},
	}
	if memory := info.MemTotal / 4 * 3; info.MemoryLimit && memory > 0 {
		o.Memory = memory // for each step, so that none takes all the machine's memory
	}
	if p.open == nil || !runs {
		return nil, r.buildImage(ctx, source, o, output)
	}
	if !r.endpoint.isLocal() {
		return nil, fmt.Errorf("%w: an engine on another machine can't build with a network that is confined to rules", images.ErrUnsupported)
	}
	network, err := p.open(ctx, p.dir)
	if err != nil {
		return nil, fmt.Errorf("open the network of the build: %w", err)
	}
	o.NetworkMode = "container:" + network.Container
	o.BuildArgs = map[string]*string{}
	for name, value := range network.Proxy { // predefined in every builder: not kept in the image or in cache keys
		o.BuildArgs[name] = &value
	}
	err = r.buildImage(ctx, source, o, output)
	refused, closeErr := network.Close()
	return refused, errors.Join(err, closeErr)
}

// checkDockerfile returns an error if the builder would download something
// itself, and reports whether a step runs a command. Triggers of base images
// may do both, so it pulls those that the engine lacks.
func (r *remote) checkDockerfile(ctx context.Context, text []byte, platform string, output *buildOutput) (runs bool, err error) {
	f, err := dockerfiles.Read(text, platform)
	if err != nil {
		return false, fmt.Errorf("%w: its %s: %w", images.ErrUnsupported, dockerfile, err)
	}
	for _, base := range f.Bases {
		found, err := r.findImage(ctx, base)
		if errors.Is(err, sandbox.ErrNotFound) {
			if err = r.pullImage(ctx, base, output); err == nil {
				found, err = r.findImage(ctx, base)
			}
		}
		if err != nil {
			return false, fmt.Errorf("base image %s: %w", base, err)
		}
		if found.Config == nil {
			continue
		}
		for _, trigger := range found.Config.OnBuild {
			f.Runs = true
			if err := dockerfiles.CheckTrigger(trigger); err != nil {
				return false, fmt.Errorf("%w: a trigger of its base image %s: %w", images.ErrUnsupported, base, err)
			}
		}
	}
	return f.Runs, nil
}

func (r *remote) pullImage(ctx context.Context, name string, output *buildOutput) error {
	answer, err := r.engine.ImagePull(ctx, name, image.PullOptions{})
	if err == nil {
		err = errors.Join(eachLine(answer, images.ErrInvalid, output.addLine), closeBody(answer))
	}
	switch {
	case context.Cause(ctx) != nil:
		return classifyError(ctx, "pull image "+name, err)
	case err != nil && !errors.Is(err, images.ErrInvalid):
		return fmt.Errorf("%w: the engine can't pull it: %w", images.ErrInvalid, err)
	}
	return err
}

func builtTag(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return builtName + ":" + hex.EncodeToString(sum[:16])
}

func (r *remote) buildImage(ctx context.Context, source *buildContext, o build.ImageBuildOptions, output *buildOutput) error {
	var answer build.ImageBuildResponse
	sendErr, err := lifecycle.Pipe(func(w io.Writer) error { return source.writeTar(ctx, w) }, func(archive io.Reader) (err error) {
		answer, err = r.engine.ImageBuild(ctx, archive, o)
		return err
	})
	if sendErr != nil && context.Cause(ctx) == nil {
		return errors.Join(sendErr, closeBody(answer.Body)) // a better reason than the engine's, which got half an archive
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

// removeUnfinished removes the nameless images that the steps of a failed build
// left, the last first, because it is made from the others. The container of a
// broken-off step holds them until the engine has removed it. Images that
// something else uses by then stay.
func (r *remote) removeUnfinished(ctx context.Context, made []string) error {
	ctx, cancel := withDeadline(context.WithoutCancel(ctx), r.load) // large layers take long
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
