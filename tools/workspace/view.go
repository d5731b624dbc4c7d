package workspace

import "context"

// View is the reading side of a workspace: what a [Reader] gives of a folder of
// this machine, and a sandbox of a workspace that only it can see (an overlay
// that the engine mounted). Each method keeps the Reader's contract: the same
// errors, bounds and spelling of paths, and safety for concurrent use.
type View interface {
	Relative(path string) (string, error)
	Scope(ctx context.Context, path string) error
	Exists(ctx context.Context, path string) (bool, error)
	Stat(ctx context.Context, path string) (Info, error)
	Lstat(ctx context.Context, path string) (Info, error)
	List(ctx context.Context, path string, depth int) (Listing, error)
	Walk(ctx context.Context, path string, o WalkOptions, visit func(Entry) error) (Walked, error)
	Search(ctx context.Context, path string, o SearchOptions) (Walked, error)
	ReadFile(ctx context.Context, path string, offset, most int64) (File, error)
	ReadInto(ctx context.Context, path string, offset int64, buf []byte) (File, error)
}

var _ View = (*Reader)(nil)
