// Package buildnetwork opens networks for the commands of image builds. An
// engine's builder runs them in its own containers, which are not sandboxes.
// They share the network namespace of a sandbox in which nothing else runs: its
// only interface is loopback, on which its guest listens as in any sandbox with
// a network. So the same server decides about their connections, by the same
// rules, and records them.
package buildnetwork

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/internal/network"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// Options are the options of a build's network. All but Log are required.
type Options struct {
	// Egress describes what commands may reach. Only Policy, Private, Upstream
	// and Budget count: a build's image does not trust Caisson's certificates,
	// so https rules refuse.
	Egress runner.EgressOptions
	// Backend creates the sandboxes, on the engine that builds.
	Backend  sandbox.Creator
	StateDir string
	// Records is the directory of the records, which is created with the first
	// one. Each build with a network has a directory in it, with [RecordsFile]
	// and, if requests were seen, [record.RequestsFile].
	Records string
	// Log gets errors that can't be returned; nil discards them.
	Log *zap.Logger
}

// RecordsFile has the records of one build's connections, as lines of JSON with
// the keys time, kind and data: first [Begun], then network.opened,
// network.closed and network.denied of package record.
const RecordsFile = "network.jsonl"

const call = "build"

// memory is the sandbox's memory limit in bytes. Only the guest runs in it.
const memory = 128 << 20

// Open opens a network for the build of the directory dir. The caller must
// close it.
func Open(ctx context.Context, o Options, dir string) (_ *images.BuildNetwork, err error) {
	var undo closers.Stack
	defer undo.CloseOnError(&err)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	session, err := sessiondir.Create(o.StateDir, nil)
	if err != nil {
		return nil, err
	}
	undo.Push(session.Close)
	work, err := runner.MakeWorkspace(session)
	if err != nil {
		return nil, err
	}
	undo.Push(func() error {
		return errors.Join(work.Close(), sessiondir.RemoveWorkspace(o.StateDir, session.Session))
	})
	records := &recordFile{dir: filepath.Join(o.Records, session.Session), first: Begun{Dir: dir, Session: session.Session}}
	for _, r := range o.Egress.Policy.Allow {
		records.first.Allow = append(records.first.Allow, r.Describe())
	}
	for _, r := range o.Egress.Policy.Deny {
		records.first.Deny = append(records.first.Deny, r.Describe())
	}
	net, err := network.New(network.Options{
		Policy: o.Egress.Policy, Private: o.Egress.Private, Upstream: o.Egress.Upstream, Budget: o.Egress.Budget, Capture: true,
		Dir: records.dir, Record: func(_ string, p record.Payload, sync bool) error { return records.writeRecord(p.Kind(), p, sync) }, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	undo.Push(func() error {
		net.Close()
		return records.closeFile()
	})
	var refused []string
	_, endCommand := net.TrackCommand(call, "")
	undo.PushFunc(func() {
		list, _ := endCommand(true)
		for _, r := range list {
			refused = append(refused, fmt.Sprintf("%s (%s)", r.Host, r.Reason))
		}
	})
	plan := *net.Plan()
	plan.Shared = true
	resources := limits.DefaultResources()
	resources.MemoryBytes = memory
	resources.PIDs = limits.MinPIDs
	resources.TmpBytes = 1 << 20
	resources.ShmBytes = 1 << 20
	resources.HomeBytes = 1 << 20
	box, err := o.Backend.Create(ctx, sandbox.Spec{
		Session: session.Session, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: resources},
		Dir: filepath.Join(session.Path, sessiondir.SandboxDir), Workspace: sandbox.Workspace{Path: work.Path, Dir: work.Dir}, Egress: &plan,
	})
	if err != nil {
		return nil, err
	}
	undo.Push(func() error {
		ctx, cancel := context.WithTimeoutCause(context.Background(), closeTime, errors.New("the network of a build was not removed in time"))
		defer cancel()
		return box.Destroy(ctx)
	})
	if err := net.BindSandbox(ctx, box); err != nil {
		return nil, err
	}
	proxy := map[string]string{}
	for _, v := range plan.ProxyVariables(0) {
		if name, value, _ := strings.Cut(v, "="); strings.HasSuffix(strings.ToUpper(name), "_PROXY") {
			proxy[name] = value
		}
	}
	return &images.BuildNetwork{Container: box.Attestation().Container, Proxy: proxy, Close: func() ([]string, error) {
		err := undo.Close()
		return refused, err
	}}, nil
}

const closeTime = time.Minute
