package docker

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/caisson-run/caisson/sandbox"
)

// minAPI is the oldest supported API: Docker 20.10, the first with private
// cgroup namespaces (CgroupnsMode) and non-recursive binds.
const minAPI = "1.41"

// engine contains every call of the Docker API that this package can make. It
// has no exec, and only base images of builds are pulled.
type engine interface {
	Info(ctx context.Context) (system.Info, error)
	ServerVersion(ctx context.Context) (types.Version, error)
	Events(ctx context.Context, o events.ListOptions) (<-chan events.Message, <-chan error)
	ImageInspect(ctx context.Context, id string, o ...client.ImageInspectOption) (image.InspectResponse, error)
	ImageList(ctx context.Context, o image.ListOptions) ([]image.Summary, error)
	ImageRemove(ctx context.Context, id string, o image.RemoveOptions) ([]image.DeleteResponse, error)
	ImageImport(ctx context.Context, source image.ImportSource, ref string, o image.ImportOptions) (io.ReadCloser, error)
	ImageLoad(ctx context.Context, archive io.Reader, o ...client.ImageLoadOption) (image.LoadResponse, error)
	ImageSave(ctx context.Context, ids []string, o ...client.ImageSaveOption) (io.ReadCloser, error)
	ImagePull(ctx context.Context, ref string, o image.PullOptions) (io.ReadCloser, error)
	ImageTag(ctx context.Context, source, target string) error
	ImageBuild(ctx context.Context, context io.Reader, o build.ImageBuildOptions) (build.ImageBuildResponse, error)
	ContainerCreate(ctx context.Context, config *container.Config, host *container.HostConfig, net *network.NetworkingConfig,
		platform *ocispec.Platform, name string) (container.CreateResponse, error)
	ContainerStart(ctx context.Context, id string, o container.StartOptions) error
	ContainerInspect(ctx context.Context, id string) (container.InspectResponse, error)
	ContainerCommit(ctx context.Context, id string, o container.CommitOptions) (container.CommitResponse, error)
	CopyToContainer(ctx context.Context, id, path string, content io.Reader, o container.CopyToContainerOptions) error
	ContainerStatPath(ctx context.Context, id, path string) (container.PathStat, error)
	CopyFromContainer(ctx context.Context, id, path string) (io.ReadCloser, container.PathStat, error)
	ContainerList(ctx context.Context, o container.ListOptions) ([]container.Summary, error)
	ContainerStatsOneShot(ctx context.Context, id string) (container.StatsResponseReader, error)
	ContainerRemove(ctx context.Context, id string, o container.RemoveOptions) error
	VolumeCreate(ctx context.Context, o volume.CreateOptions) (volume.Volume, error)
	VolumeInspect(ctx context.Context, name string) (volume.Volume, error)
	VolumeList(ctx context.Context, o volume.ListOptions) (volume.ListResponse, error)
	VolumeRemove(ctx context.Context, name string, force bool) error
	Close() error
}

var _ engine = (*client.Client)(nil)

func dialEngine(ctx context.Context, e endpoint, times deadlines) (*remote, error) {
	transport := &http.Transport{TLSClientConfig: e.tls, MaxIdleConns: 6, IdleConnTimeout: 30 * time.Second}
	c, err := client.NewClientWithOpts(
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost(e.host), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("%w: engine address %s (from %s): %w", sandbox.ErrInvalid, e.host, e.from, err)
	}
	ping, err := callWithin(ctx, times.ask, "ask the engine", c.Ping)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	if versions.LessThan(ping.APIVersion, minAPI) {
		_ = c.Close()
		return nil, fmt.Errorf("%w: it speaks API %q, at least %s is needed: update it to Docker 20.10 or newer",
			sandbox.ErrUnsupported, ping.APIVersion, minAPI)
	}
	c.NegotiateAPIVersionPing(ping)
	return &remote{engine: c, endpoint: e, api: c.ClientVersion(), deadlines: times}, nil
}

// connection is the connection to an engine, made by the first call.
type connection struct {
	endpoint endpoint
	times    deadlines

	mu     sync.Mutex // held while connecting
	remote *remote    // nil until connected
}

// connectWith returns the engine. The first call dials it and calls examine; a
// failure is not remembered.
func (c *connection) connectWith(ctx context.Context, examine func(*remote) error) (*remote, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.remote != nil {
		return c.remote, nil
	}
	r, err := dialEngine(ctx, c.endpoint, c.times)
	if err != nil {
		return nil, c.endpoint.wrapError(err)
	}
	if err := examine(r); err != nil {
		_ = r.engine.Close() // nothing was done with it
		return nil, c.endpoint.wrapError(err)
	}
	c.remote = r
	return r, nil
}

// Close closes idle connections to the engine.
func (c *connection) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.remote == nil {
		return nil
	}
	return c.remote.engine.Close()
}

// attachContainer connects to a container's standard input and output. Once it
// has dialled, the client's own hijacking ignores ctx, and a stopped engine
// would block it for ever. So its dialler returns a connection that fails when
// ctx ends. Cancelling ctx after the return has no effect.
func (r *remote) attachContainer(ctx context.Context, id string) (*types.HijackedResponse, error) {
	ctx, cancel := withDeadline(ctx, r.deadlines.attach)
	defer cancel()
	var stop func() bool
	dialler := func(_ context.Context, _, _ string) (net.Conn, error) {
		conn, err := dialEndpoint(ctx, r.endpoint)
		if err == nil {
			stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		}
		return conn, err
	}
	c, err := client.NewClientWithOpts(client.WithHost(r.endpoint.host), client.WithVersion(r.api), client.WithDialContext(dialler))
	if err != nil {
		return nil, err
	}
	response, err := c.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err == nil && stop != nil && !stop() {
		response.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, classifyError(ctx, "attach to container", err)
	}
	return &response, nil
}

func dialEndpoint(ctx context.Context, e endpoint) (net.Conn, error) {
	url, err := client.ParseHostURL(e.host)
	if err != nil {
		return nil, err
	}
	if e.tls != nil {
		return (&tls.Dialer{Config: e.tls}).DialContext(ctx, url.Scheme, url.Host)
	}
	return new(net.Dialer).DialContext(ctx, url.Scheme, url.Host)
}
