package docker

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/caisson-run/caisson/sandbox"
)

// minAPI is the oldest API that is spoken: Docker 20.10, the first with private
// cgroup namespaces (CgroupnsMode) and non-recursive binds.
const minAPI = "1.41"

// engine is every call of the Docker API that this package makes. What is not
// here can't be used: no exec, no archive, no pull, no volume.
type engine interface {
	Ping(ctx context.Context) (types.Ping, error)
	Info(ctx context.Context) (system.Info, error)
	ServerVersion(ctx context.Context) (types.Version, error)
	Events(ctx context.Context, o events.ListOptions) (<-chan events.Message, <-chan error)
	ImageInspect(ctx context.Context, id string, o ...client.ImageInspectOption) (image.InspectResponse, error)
	ImageImport(ctx context.Context, source image.ImportSource, ref string, o image.ImportOptions) (io.ReadCloser, error)
	ContainerCreate(ctx context.Context, config *container.Config, host *container.HostConfig, net *network.NetworkingConfig,
		platform *ocispec.Platform, name string) (container.CreateResponse, error)
	ContainerStart(ctx context.Context, id string, o container.StartOptions) error
	ContainerInspect(ctx context.Context, id string) (container.InspectResponse, error)
	ContainerList(ctx context.Context, o container.ListOptions) ([]container.Summary, error)
	ContainerRemove(ctx context.Context, id string, o container.RemoveOptions) error
	Close() error
}

var _ engine = (*client.Client)(nil)

// The deadlines of calls: about a hundred times what was measured on an idle
// machine (create 20 ms, start 100 ms, remove 86 ms), so that a loaded engine
// passes and a stopped one is noticed.
const (
	askTime    = 10 * time.Second // ping, info, inspect, list, attach
	createTime = 30 * time.Second
	startTime  = 30 * time.Second
	removeTime = 30 * time.Second
	importTime = time.Minute
)

// dial makes a client and agrees on a version of the API.
func dial(ctx context.Context, e endpoint) (*client.Client, error) {
	transport := &http.Transport{TLSClientConfig: e.tls, MaxIdleConns: 6, IdleConnTimeout: 30 * time.Second}
	c, err := client.NewClientWithOpts(
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost(e.host), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("%w: engine address %s (from %s): %w", sandbox.ErrInvalid, e.host, e.from, err)
	}
	ping, err := within(ctx, askTime, "ask the engine", func(ctx context.Context) (types.Ping, error) { return c.Ping(ctx) })
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("engine at %s (from %s): %w", e.host, e.from, err)
	}
	if versions.LessThan(ping.APIVersion, minAPI) {
		c.Close()
		return nil, fmt.Errorf("%w: engine at %s speaks API %s, at least %s is needed: update it to Docker 20.10 or newer",
			sandbox.ErrUnsupported, e.host, ping.APIVersion, minAPI)
	}
	c.NegotiateAPIVersionPing(ping)
	return c, nil
}

// attach opens the one connection to a container's standard input and output.
// The client's own hijacking does not obey ctx once it has dialled, and a
// stopped engine would hold it for ever; so it gets a dialler whose connection
// fails when ctx ends. Cancelling ctx after attach returned does nothing.
func attach(ctx context.Context, e endpoint, version, id string) (*types.HijackedResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errDeadline)
	defer cancel()
	var stop func() bool
	dialler := func(_ context.Context, _, _ string) (net.Conn, error) {
		conn, err := dialEndpoint(ctx, e)
		if err == nil {
			stop = context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
		}
		return conn, err
	}
	c, err := client.NewClientWithOpts(client.WithHost(e.host), client.WithVersion(version), client.WithDialContext(dialler))
	if err != nil {
		return nil, err
	}
	response, err := c.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err == nil && stop != nil && !stop() {
		response.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fault(ctx, "attach to container", err)
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
	return dialNetwork(ctx, url.Scheme, url.Host)
}
