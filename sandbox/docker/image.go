package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
)

type rootImage struct {
	reference string
	// id is the engine's ID for the image, which is also the attested digest of
	// the engine's own images.
	id, digest string
	binds      []images.Bind
	masks      []string
	// Each of config's VOLUMEs gets a small tmpfs, so that the engine makes no
	// volume on the host's disk.
	config images.Config
	// unseen reports that the image's content is unknown: only a running
	// container shows whether it has a shell.
	unseen bool
}

// The label and name of an imported skeleton. The name has the hash of its
// content, so images with the same skeleton share one import.
const (
	labelSkeleton = "io.caisson.skeleton"
	skeletonName  = "caisson/skeleton"
)

func needShell(ctx context.Context, c *engineContainer, conn *guest.Conn) error {
	if !c.image.unseen {
		return nil
	}
	p, err := conn.Start(ctx, sandbox.Command{Argv: []string{"/bin/sh", "-c", ":"}})
	if err != nil {
		return fmt.Errorf("look for a shell: %w", err)
	}
	exit, err := p.Wait()
	if err != nil {
		return fmt.Errorf("look for a shell: %w", err)
	}
	if !exit.Status.Success() {
		return fmt.Errorf("image %s: %w: it has no /bin/sh that runs (exit code %d): use an image with a shell",
			c.image.reference, sandbox.ErrUnsupported, exit.Status.Code)
	}
	return nil
}

func engineImage(ctx context.Context, r *remote, f facts, ref images.Reference) (rootImage, error) {
	found, err := r.findImage(ctx, ref.Value)
	if errors.Is(err, sandbox.ErrNotFound) {
		return rootImage{}, fmt.Errorf("image %s: %w on the engine: docker pull %s, or use image host", ref.Value, sandbox.ErrNotFound, ref.Value)
	}
	if err != nil {
		return rootImage{}, err
	}
	if found.Os != "linux" || found.Architecture != goArchitecture(f.info.Architecture) {
		return rootImage{}, fmt.Errorf("image %s: %w: it is for %s/%s and the engine runs linux/%s: pull it for that platform",
			ref.Value, sandbox.ErrUnsupported, found.Os, found.Architecture, f.info.Architecture)
	}
	made := rootImage{reference: ref.String(), id: found.ID, digest: found.ID, unseen: true}
	if found.Config != nil {
		if made.config, err = convertConfig(found.Config); err != nil {
			return rootImage{}, sandbox.ImageError(fmt.Errorf("image %s: %w", ref.Value, err))
		}
	}
	return made, nil
}

// convertConfig converts an engine's image configuration.
func convertConfig(c *dockerspec.DockerOCIImageConfig) (images.Config, error) {
	raw := images.Config{
		User: c.User, WorkingDir: c.WorkingDir, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Shell: c.Shell, Env: c.Env,
		Volumes: slices.Sorted(maps.Keys(c.Volumes)),
	}
	if h := c.Healthcheck; h != nil {
		raw.HealthCheck = &images.HealthCheck{Test: h.Test, Interval: h.Interval, Timeout: h.Timeout, StartPeriod: h.StartPeriod, StartInterval: h.StartInterval, Retries: h.Retries}
	}
	config, _, err := images.NewConfig(raw)
	return config, err
}

// goArchitecture returns Go's name (amd64) for an engine's architecture (x86_64).
func goArchitecture(engine string) string {
	words := map[string]string{"x86_64": "amd64", "aarch64": "arm64"}
	return cmp.Or(words[engine], engine)
}

// skeletonImage returns the skeleton of a root that consists of binds: a few
// empty directories and small files. It imports the skeleton if the engine
// lacks it.
func (b *Backend) skeletonImage(ctx context.Context, r *remote, root *images.RootFS) (rootImage, error) {
	made := rootImage{
		reference: root.Reference.String(), digest: root.Digest, binds: root.Binds, masks: root.Masks, config: root.Config,
	}
	sum := sha256.New()
	err := host.WriteSkeletonTar(root, sum)
	if err != nil {
		return rootImage{}, fmt.Errorf("image %s: %w: %w", made.reference, sandbox.ErrInvalid, err)
	}
	hash := hex.EncodeToString(sum.Sum(nil))
	if made.id, err = skeletonID(ctx, r, hash); err == nil || !errors.Is(err, sandbox.ErrNotFound) {
		return made, err
	}
	// The second of two imports at once would leave an image without a name.
	lock, err := state.Acquire(ctx, filepath.Join(b.options.StateDir, "docker-import.lock"), state.Forever)
	if err != nil {
		return rootImage{}, fmt.Errorf("wait for another import: %w", err)
	}
	defer func() { _ = lock.Release() }() // the lock ends with the process at the latest
	if made.id, err = skeletonID(ctx, r, hash); err == nil || !errors.Is(err, sandbox.ErrNotFound) {
		return made, err
	}
	// Another user's Caisson, with another lock, may import it at the same
	// time. Then one of the two has lost its name, or the engine refused this
	// one because it has one with that name.
	imported := importSkeleton(ctx, r, root, hash)
	if imported == nil {
		if _, err := pruneSkeletons(ctx, r, skeletonTime); err != nil {
			return rootImage{}, err
		}
	}
	made.id, err = skeletonID(ctx, r, hash)
	if imported != nil && errors.Is(err, sandbox.ErrNotFound) {
		err = imported
	}
	return made, err
}

// skeletonID returns the ID of the skeleton with a hash. It checks that the
// image has the label and no volumes.
func skeletonID(ctx context.Context, r *remote, hash string) (string, error) {
	name := skeletonName + ":" + hash
	found, err := r.findImage(ctx, name)
	if err != nil {
		return "", err
	}
	if found.Config == nil || found.Config.Labels[labelSkeleton] != hash || len(found.Config.Volumes) > 0 {
		return "", fmt.Errorf("image %s: %w: it is not what Caisson imported: remove it (docker rmi %s)", name, sandbox.ErrUnavailable, name)
	}
	return found.ID, nil
}

func importSkeleton(ctx context.Context, r *remote, root *images.RootFS, hash string) error {
	_, err := lifecycle.Pipe(func(w io.Writer) error { return host.WriteSkeletonTar(root, w) }, func(archive io.Reader) error {
		return r.importImage(ctx, archive, skeletonName+":"+hash, "LABEL "+labelSkeleton+"="+hash)
	})
	return err
}
