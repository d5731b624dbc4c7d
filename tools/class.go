package tools

// Class is the highest side effect that a tool is capable of: by capability,
// not by typical usage (docs/internal/specification.md §5.3).
type Class string

// The classes, lowest first, as they are written on the wire.
const (
	ClassNone    Class = "none"    // pure computation
	ClassRead    Class = "read"    // reads the workspace
	ClassWrite   Class = "write"   // changes files of the workspace
	ClassExecute Class = "execute" // runs arbitrary code
	ClassNetwork Class = "network" // changes external state
)

// Place is where a tool runs.
type Place string

// The places. What writes workspace files or executes code must run in the
// sandbox, or its registration fails.
const (
	PlaceHost    Place = "host"
	PlaceSandbox Place = "sandbox"
	// PlaceState is state of Caisson's own on the host, outside every workspace:
	// for the tools of stateTools alone, which name no path.
	PlaceState Place = "state"
)

// Valid reports whether c is one of the classes.
func (c Class) Valid() bool {
	switch c {
	case ClassNone, ClassRead, ClassWrite, ClassExecute, ClassNetwork:
		return true
	}
	return false
}

func (p Place) isValid() bool { return p == PlaceHost || p == PlaceSandbox || p == PlaceState }

// Names of the tools whose restrictions also bind the tools that do their work;
// see [Definition].ActsAs.
const (
	NameShell Name = "shell"

	NameSearchTools Name = "search_tools"
	NameLoadTool    Name = "load_tool"
	NameReadFile    Name = "read_file"
	NameWriteFile   Name = "write_file"
	NamePatchFile   Name = "patch_file"
	NameDeleteFile  Name = "delete_file"
)

// stateTools are the tools that keep state of ours on the host. None of them can
// reach a file of a workspace: a test of the layers holds that.
func stateTools() []Name { return []Name{"memory_add", "memory_replace", "memory_consolidate"} }
