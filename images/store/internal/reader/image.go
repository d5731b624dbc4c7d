package reader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/layer"
)

// Options configures how images are read.
type Options struct {
	Platform string // required: os/architecture
	Limits   layer.Limits
	// Keychain, PlainHTTP, Transport and IdleTimeout are for registries.
	Keychain    authn.Keychain // nil means the user's Docker configuration
	PlainHTTP   []string       // hosts or host:port that may be used without TLS
	Transport   http.RoundTripper
	IdleTimeout time.Duration // bounds a download's time without data
}

// Image is an image with its checked configuration and layers that have not
// been read.
type Image struct {
	Ref      images.Reference
	Digest   string // see [images.Image]
	ID       string // the configuration's digest
	EngineID string // the engine's ID, if it came from one
	Manifest []byte // nil if it came from an archive
	Config   []byte
	Parsed   v1.ConfigFile
	// Run is how programs run according to Parsed, within bounds, with the
	// volumes as declared. EnvDropped is the number of environment entries left
	// out.
	Run        images.Config
	EnvDropped int
	Layers     []layer.Layer
	// Close releases the image's source; never nil.
	Close func()
}

// newImage checks a configuration against its layers and the platform, and sets
// the layers' DiffIDs.
func newImage(ref images.Reference, config []byte, layers []layer.Layer, platform string, limits layer.Limits) (*Image, error) {
	im := &Image{Ref: ref, ID: digest.Of(config), Config: config, Layers: layers, Close: func() {}}
	if err := json.Unmarshal(config, &im.Parsed); err != nil {
		return nil, fmt.Errorf("%w: read its configuration: %w", images.ErrInvalid, err)
	}
	ids := im.Parsed.RootFS.DiffIDs
	switch {
	case len(ids) != len(layers):
		return nil, fmt.Errorf("%w: its configuration lists %d layers, its manifest %d", images.ErrInvalid, len(ids), len(layers))
	case len(ids) > limits.Layers:
		return nil, fmt.Errorf("%w: %d layers: want at most %d", images.ErrInvalid, len(ids), limits.Layers)
	}
	for i, id := range ids {
		if id.Algorithm != "sha256" {
			return nil, fmt.Errorf("%w: layer digest uses %s: want sha256", images.ErrUnsupported, id.Algorithm)
		}
		layers[i].DiffID = id.String()
	}
	if err := im.checkPlatform(platform); err != nil {
		return nil, err
	}
	var err error
	im.Run, im.EnvDropped, err = convertConfig(&im.Parsed.Config, config)
	if err != nil {
		return nil, err
	}
	return im, nil
}

func (im *Image) checkPlatform(platform string) error {
	system, machine, _ := strings.Cut(platform, "/")
	c := im.Parsed
	if (c.OS != "" && c.OS != system) || (c.Architecture != "" && c.Architecture != machine) {
		return fmt.Errorf("%w: it is for %s/%s: want an image for %s", images.ErrUnsupported, c.OS, c.Architecture, platform)
	}
	return nil
}

// Document is a manifest or an index. Only the content shows which: the media
// type it is served with may be wrong.
type Document struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     types.MediaType `json:"mediaType"`
	Manifests     []v1.Descriptor `json:"manifests"`
	Config        *v1.Descriptor  `json:"config"`
	Layers        []v1.Descriptor `json:"layers"`
}

// ParseDocument parses a manifest or an index.
func ParseDocument(raw []byte) (Document, error) {
	var d Document
	if err := json.Unmarshal(raw, &d); err != nil {
		return d, fmt.Errorf("%w: read its manifest: %w", images.ErrInvalid, err)
	}
	switch {
	case d.Manifests != nil && (d.Config != nil || d.Layers != nil):
		return d, fmt.Errorf("%w: its manifest is also an index", images.ErrInvalid) // CVE-2021-41190
	case d.Manifests == nil && d.Config == nil:
		return d, fmt.Errorf("%w: its manifest has schema version %d, without a configuration", images.ErrUnsupported, d.SchemaVersion)
	}
	return d, nil
}

// DocumentReader returns what a descriptor names, checked against its digest.
type DocumentReader func(ctx context.Context, d v1.Descriptor) ([]byte, error)

// maxNested is how deep indexes may be nested: a layout's, a multi-platform
// image's, and two spare levels.
const maxNested = 4

// SelectManifest follows indexes to the platform's manifest.
func SelectManifest(ctx context.Context, raw []byte, platform string, get DocumentReader) (manifest []byte, d Document, err error) {
	for range maxNested {
		if d, err = ParseDocument(raw); err != nil {
			return nil, d, err
		}
		if d.Manifests == nil {
			return raw, d, nil
		}
		next, err := selectPlatform(d.Manifests, platform)
		if err != nil {
			return nil, d, err
		}
		if raw, err = get(ctx, next); err != nil {
			return nil, d, err
		}
	}
	return nil, d, fmt.Errorf("%w: indexes nested more than %d deep", images.ErrInvalid, maxNested)
}

// selectPlatform returns an index's first entry for the platform, or the only
// entry if it declares none.
func selectPlatform(list []v1.Descriptor, platform string) (v1.Descriptor, error) {
	system, machine, _ := strings.Cut(platform, "/")
	var has []string
	for _, d := range list {
		p := d.Platform
		if p == nil {
			if len(list) == 1 {
				return d, nil
			}
			continue
		}
		if p.OS == system && p.Architecture == machine {
			return d, nil
		}
		if p.OS != "unknown" { // BuildKit's platform for attestations
			has = append(has, p.OS+"/"+p.Architecture)
		}
	}
	if len(has) > 12 {
		has = append(has[:12], "…")
	}
	return v1.Descriptor{}, fmt.Errorf("%w: no variant for %s: it has %s", images.ErrUnsupported, platform, strings.Join(has, ", "))
}

var imageConfigs = []types.MediaType{types.OCIConfigJSON, types.DockerConfigJSON, ""}

// BlobOpener opens a blob that a manifest names.
type BlobOpener func(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error)

// FromManifest returns a manifest's image.
func FromManifest(ctx context.Context, ref images.Reference, manifest []byte, d Document, o *Options, get DocumentReader, open BlobOpener) (*Image, error) {
	if !slices.Contains(imageConfigs, d.Config.MediaType) {
		return nil, fmt.Errorf("%w: not a container image but %s", images.ErrInvalid, d.Config.MediaType)
	}
	config, err := get(ctx, *d.Config)
	if err != nil {
		return nil, fmt.Errorf("read its configuration: %w", err)
	}
	var layers []layer.Layer
	for _, l := range d.Layers {
		if l.Digest.Algorithm != "sha256" || l.Size < 0 {
			return nil, fmt.Errorf("%w: invalid layer %s of %d bytes", images.ErrInvalid, l.Digest, l.Size)
		}
		layers = append(layers, layer.Layer{
			Digest: l.Digest.String(), Size: l.Size, Known: true,
			Open: func(ctx context.Context) (io.ReadCloser, error) { return open(ctx, l) },
		})
	}
	im, err := newImage(ref, config, layers, o.Platform, o.Limits)
	if err != nil {
		return nil, err
	}
	im.Manifest, im.Digest = manifest, digest.Of(manifest)
	return im, nil
}

// ReadDocument reads a document of at most limit bytes and checks its digest.
func ReadDocument(r io.Reader, d v1.Descriptor, limit int64) ([]byte, error) {
	data, err := readAtMost(r, limit)
	if err != nil {
		return nil, err
	}
	if got := digest.Of(data); got != d.Digest.String() {
		return nil, fmt.Errorf("%w: %s has digest %s", images.ErrDigest, d.Digest, got)
	}
	return data, nil
}

func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	var b bytes.Buffer
	n, err := b.ReadFrom(io.LimitReader(r, limit+1))
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case n > limit:
		return nil, fmt.Errorf("%w: a manifest or configuration of more than %d bytes", images.ErrRefused, limit)
	}
	return b.Bytes(), nil
}

// convertConfig converts a configuration, which was read from raw, and returns
// the number of environment entries left out.
func convertConfig(c *v1.Config, raw []byte) (images.Config, int, error) {
	out := images.Config{
		User: c.User, WorkingDir: c.WorkingDir, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Shell: c.Shell, Env: c.Env, Volumes: listVolumes(c),
	}
	if h := c.Healthcheck; h != nil {
		var newer struct { // v1.Config lacks these
			Config struct {
				Healthcheck struct{ StartInterval time.Duration }
			}
		}
		if err := json.Unmarshal(raw, &newer); err != nil {
			return out, 0, fmt.Errorf("%w: read its HEALTHCHECK: %w", images.ErrInvalid, err)
		}
		out.HealthCheck = &images.HealthCheck{
			Test: h.Test, Interval: h.Interval, Timeout: h.Timeout, StartPeriod: h.StartPeriod, StartInterval: newer.Config.Healthcheck.StartInterval, Retries: h.Retries,
		}
	}
	return images.NewConfig(out)
}

// listVolumes returns the directories declared as VOLUME, sorted.
func listVolumes(c *v1.Config) []string {
	var list []string
	for v := range c.Volumes {
		if path.IsAbs(v) {
			list = append(list, path.Clean(v))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
