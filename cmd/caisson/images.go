package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

func newImagesCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "images", Short: "List, fetch, copy from and remove the images that sandboxes run on",
	}, newImagesListCommand(a), newImagesPullCommand(a), newImagesExportCommand(a), newImagesRemoveCommand(a), newImagesPruneCommand(a))
}

const imagesListLong = `List the images of the cache, below $XDG_CACHE_HOME/caisson/images.

DIGEST is the pinned digest, which each start uses until caisson images pull renews it. USED is the
time of the last session on the image; "now" means that one is running.
`

func newImagesListCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List the images of the cache",
		Long:    imagesListLong + exitHelp(map[int]string{exitFailed: imagesFailed}, usesConfig),
		Example: "  caisson images ls\n  caisson images ls --json | jq -r '.[].digest'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withImages(cmd.Context(), a, nil, func(s *store.Store, _ *caisson.Host) error {
				list, err := s.List(cmd.Context())
				if err != nil {
					return err
				}
				return showImages(a.stdout, list, asJSON, time.Now())
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON array")
	return cmd
}

const imagesPullLong = `Resolve each name again, pin it to its present digest, fetch and unpack the image.

A start uses the pinned digest of a name without asking a registry; the first start on a name pins
it. So pull renews an image, and prepares a machine for a time without network. Running sessions keep
their image. Names, oci-layout:DIR, docker-archive:FILE and build:DIR can be pulled.
`

func newImagesPullCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "pull REF...",
		Short: "Fetch images and pin their names to the present digests",
		Long: imagesPullLong + exitHelp(map[int]string{exitFailed: imagesFailed, exitAuth: imagesRefused, exitInput: imagesMissing},
			usesConfig|interruptible),
		Example: "  caisson images pull debian:bookworm-slim\n  caisson images pull localhost:5000/team/tools@sha256:…",
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := imageArguments(args)
			if err != nil {
				return err
			}
			p := newPulling(a)
			defer p.Close()
			ctx, _, _, stop := handleInterrupts(cmd.Context(), a.takeSignals(), func(string) {}, a.exit)
			defer stop()
			err = withImages(ctx, a, p.Report, func(s *store.Store, _ *caisson.Host) error {
				for _, ref := range refs {
					got, err := s.Pull(ctx, ref)
					p.Close()
					if err != nil {
						return err
					}
					name, _ := tools.Display(ref.String())
					if _, err := fmt.Fprintf(a.stdout, "%s %s\n", name, got.Digest); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return cmp.Or(interruption(ctx), err)
			}
			return nil
		},
	}
}

const imagesExportLong = `Copy a directory of an image, by default its WORKDIR, into DIR, which must be empty or missing: to
work on the files that an image brings, with DIR as the workspace. Without it a workspace that is
mounted there (--workdir image) hides them.

The files are yours. Permissions are kept, set-user-ID bits are not. Symlinks are copied as they are,
wherever they lead. The image is fetched and unpacked first if it is not in the cache.
`

func newImagesExportCommand(a *app) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "export [flags] REF DIR",
		Short: "Copy a directory of an image, such as its WORKDIR",
		Long: imagesExportLong + exitHelp(map[int]string{exitFailed: imagesFailed, exitAuth: imagesRefused, exitInput: imagesMissing},
			usesConfig|interruptible),
		Example: "  caisson images export team/task:1 ./task\n  caisson run --workspace ./task --image team/task:1 --workdir image 'Make the tests pass.'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return newUsageError("an image and a directory are needed, such as team/task:1 ./task")
			}
			refs, err := imageArguments(args[:1])
			if err != nil {
				return err
			}
			p := newPulling(a)
			defer p.Close()
			ctx, _, _, stop := handleInterrupts(cmd.Context(), a.takeSignals(), func(string) {}, a.exit)
			defer stop()
			err = withImages(ctx, a, p.Report, func(s *store.Store, _ *caisson.Host) error {
				done, err := s.Export(ctx, refs[0], path, args[1])
				p.Close()
				if err != nil {
					return err
				}
				text, _ := tools.Display(fmt.Sprintf("%s: %d entries, %s copied to %s", done.Path, done.Entries, limits.FormatSize(done.Bytes), args[1]))
				_, err = fmt.Fprintln(a.stdout, text)
				return err
			})
			if err != nil {
				return cmp.Or(interruption(ctx), err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&path, "path", "", "directory of the image (default its WORKDIR)")
	return cmd
}

const imagesRemoveLong = `Forget images and free content that no other image needs. An image that a session uses is not
removed. The next start on a name fetches it again, and pins its digest at that time.
`

func newImagesRemoveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "rm REF...",
		Short:   "Remove images from the cache",
		Long:    imagesRemoveLong + exitHelp(map[int]string{exitFailed: imagesFailed, exitInput: imagesMissing}, usesConfig),
		Example: "  caisson images rm debian:bookworm-slim",
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := imageArguments(args)
			if err != nil {
				return err
			}
			return withImages(cmd.Context(), a, nil, func(s *store.Store, _ *caisson.Host) error {
				var total store.Pruned
				for _, ref := range refs {
					gone, err := s.Remove(cmd.Context(), ref)
					total = addPruned(total, gone)
					if err != nil {
						return errors.Join(err, showPruned(a.stdout, total))
					}
				}
				return showPruned(a.stdout, total)
			})
		},
	}
}

const imagesPruneLong = `Forget images that no session has used for a while. Free content that no image needs, and the
leftovers of dead processes. Images that Caisson loaded into or built on the Docker engine are removed
after the same time. Images that sessions use stay, and so does everything else on the engine.
`

// pruneTime is when an image counts as unused: longer than a holiday.
const pruneTime = 30 * 24 * time.Hour

func newImagesPruneCommand(a *app) *cobra.Command {
	var unused time.Duration
	var all bool
	cmd := &cobra.Command{
		Use:     "prune [flags]",
		Short:   "Remove images that no session has used for a while",
		Long:    imagesPruneLong + exitHelp(map[int]string{exitFailed: imagesFailed}, usesConfig),
		Example: "  caisson images prune\n  caisson images prune --unused 24h",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case all && cmd.Flags().Changed("unused"):
				return newUsageError("--all or --unused, not both")
			case all:
				unused = 0
			case unused <= 0:
				return newUsageError("--unused %s: the time must be more than 0; --all removes what no session uses now", unused)
			}
			return withImages(cmd.Context(), a, nil, func(s *store.Store, host *caisson.Host) error {
				gone, err := s.Prune(cmd.Context(), unused)
				err = errors.Join(err, showPruned(a.stdout, gone))
				engine := host.ImageEngine(cmd.Context())
				if engine == nil {
					return err
				}
				n, engineErr := engine.Prune(cmd.Context(), unused)
				engineErr = errors.Join(engineErr, engine.Close())
				if n > 0 {
					_, shown := fmt.Fprintf(a.stdout, "%d images of Caisson removed from the engine\n", n)
					err = errors.Join(err, shown)
				}
				return errors.Join(err, engineErr)
			})
		},
	}
	cmd.Flags().DurationVar(&unused, "unused", pruneTime, "how long an image must not have been used")
	cmd.Flags().BoolVar(&all, "all", false, "everything that no session uses now")
	return cmd
}

// withImages opens the store, with report as its progress, and does something
// with it.
func withImages(ctx context.Context, a *app, report func(store.Progress), do func(*store.Store, *caisson.Host) error) error {
	bs, err := openDefaultBackends(a)
	if err != nil {
		return err
	}
	defer bs.close()
	bs.host.ReportPulls(report)
	store, err := bs.openImages(ctx)
	if err != nil {
		return imageFailure(err)
	}
	return imageFailure(do(store, bs.host))
}

// imageArguments reads the references of a command line.
func imageArguments(args []string) ([]images.Reference, error) {
	if len(args) == 0 {
		return nil, newUsageError("an image is needed, such as debian:bookworm-slim")
	}
	var refs []images.Reference
	for _, text := range args {
		ref, err := images.ParseLocalReference(text)
		if err != nil {
			return nil, &usageError{err}
		}
		if ref.Scheme == images.SchemeHost || ref.Scheme == images.SchemeRootFS {
			return nil, newUsageError("%s is used as it is, and never in the cache", text)
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// newPulling shows progress on standard error.
func newPulling(a *app) *ui.PullProgress {
	p := &ui.PullProgress{
		Say: func(text string) {
			safe, _ := tools.Display(text)
			fmt.Fprintln(a.stderr, "caisson: "+safe) // who does not read it does not want it
		},
		Width: func() int { columns, _ := a.size(); return columns }, Now: time.Now, Pause: ui.LinePause,
	}
	if a.terminal(a.stderr) && a.environ.get("TERM") != "dumb" && a.environ.get("TERM") != "" {
		p.Bar = a.stderr
	}
	return p
}

// listedImage is an image as --json shows it.
type listedImage struct {
	Reference string     `json:"reference"`
	Digest    string     `json:"digest"`
	ID        string     `json:"id"`
	Platform  string     `json:"platform"`
	Bytes     int64      `json:"bytes"`
	Created   *time.Time `json:"created,omitempty"`
	Pulled    *time.Time `json:"pulled,omitempty"`
	Used      *time.Time `json:"used,omitempty"`
	InUse     bool       `json:"in_use"`
	Unpacked  bool       `json:"unpacked"`
	// Config is the configuration of its programs.
	Config images.Config `json:"config"`
}

// showImages writes images as a table, or as JSON.
func showImages(w io.Writer, list []images.Image, asJSON bool, now time.Time) error {
	if asJSON {
		out := []listedImage{}
		for _, i := range list {
			out = append(out, listedImage{
				Reference: i.Reference.String(), Digest: i.Digest, ID: i.ID, Platform: i.Platform, Bytes: i.Size,
				Created: knownTime(i.Created), Pulled: knownTime(i.Pulled), Used: knownTime(i.Used), InUse: i.InUse, Unpacked: i.Unpacked, Config: i.Config,
			})
		}
		return writeJSON(w, out)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "IMAGE\tDIGEST\tPLATFORM\tSIZE\tPULLED\tUSED")
	for _, i := range list {
		name, _ := tools.Display(i.Reference.String())
		used := doctor.FormatAge(i.Used, now)
		if i.InUse {
			used = "now"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", name, doctor.ShortenDigest(i.Digest), i.Platform, limits.FormatSize(i.Size), doctor.FormatAge(i.Pulled, now), used)
	}
	return t.Flush()
}

// knownTime is a time, or nil for none.
func knownTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func addPruned(a, b store.Pruned) store.Pruned {
	a.Images, a.Kept = append(a.Images, b.Images...), append(a.Kept, b.Kept...)
	a.Bytes += b.Bytes
	a.Orphans += b.Orphans
	return a
}

// showPruned lists what was removed and what was kept.
func showPruned(w io.Writer, p store.Pruned) error {
	var errs []error
	line := func(format string, args ...any) {
		text, _ := tools.Display(fmt.Sprintf(format, args...))
		_, err := fmt.Fprintln(w, text)
		errs = append(errs, err)
	}
	for _, i := range p.Images {
		line("removed  %s  %s", i.Reference, doctor.ShortenDigest(i.Digest))
	}
	for _, i := range p.Kept {
		line("kept     %s: a session uses it", i.Reference)
	}
	if p.Orphans > 0 {
		line("removed  %d things that dead processes left half made", p.Orphans)
	}
	line("%s freed", limits.FormatSize(p.Bytes))
	return errors.Join(errs...)
}

// What exit statuses mean to the commands about images.
const (
	imagesFailed  = "a registry can't be reached, or the image is in use"
	imagesRefused = "a registry refuses the credentials"
	imagesMissing = "there is no such image, or it can't be used here"
)

// imageFailure turns an error of package images into what people read.
func imageFailure(err error) error {
	if _, ok := errors.AsType[*commandError](err); ok || explainError(err) != nil {
		return err
	}
	if e, ok := errors.AsType[*images.BuildError](err); ok {
		return &commandError{Status: exitInput, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: buildHint(e)}}
	}
	for _, class := range []struct {
		err    error
		status int
		hint   string
	}{
		{images.ErrUnauthorized, exitAuth, "Log in with docker login: Caisson takes the credentials from there."},
		{images.ErrUnreachable, exitFailed, "Check the name, the network and the proxies; caisson images ls shows what is there without a network."},
		{images.ErrDigest, exitFailed, "Try again; if it stays, the registry or something on the way changes content: ask who runs it."},
		{images.ErrRefused, exitInput, "Use an image that you trust, or ask who made this one."},
		{images.ErrInUse, exitFailed, "End the session that uses it: caisson sandbox ls shows it."},
		{images.ErrNotFound, exitInput, "Check the name or path; caisson images ls lists what is there."},
		{images.ErrUnsupported, exitInput, "Use an image for this machine, from a source that works here: see docs/images.md."},
		{images.ErrInvalid, exitInput, "Images are host, rootfs:DIR, oci-layout:DIR, docker-archive:FILE, build:DIR, or a name such as debian:bookworm-slim."},
	} {
		if errors.Is(err, class.err) {
			return &commandError{Status: class.status, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: class.hint}}
		}
	}
	return err
}
