package sandbox

// Attestation describes a running sandbox as the guest observed it from inside
// and as it was read back from the engine or runtime, never as merely
// requested. It is recorded in sandbox.started and session.ended.
type Attestation struct {
	Backend        string `json:"backend"`
	Runtime        string `json:"runtime"`
	RuntimeVersion string `json:"runtime_version"`
	EngineVersion  string `json:"engine_version,omitempty"`
	Container      string `json:"container"`
	Image          string `json:"image"`
	ImageDigest    string `json:"image_digest"`
	Kernel         string `json:"kernel"` // the content of /proc/version inside
	GuestVersion   string `json:"guest_version"`
	GuestSHA256    string `json:"guest_sha256"`

	UserPolicy string `json:"user_policy"` // "owner", "image" or "root"
	User       string `json:"user"`        // uid:gid of commands
	// Groups are the commands' supplementary groups, except the one that marks
	// their processes.
	Groups            []uint32 `json:"groups,omitempty"`
	GuestUser         string   `json:"guest_user"` // uid:gid of the guest
	Capabilities      []string `json:"capabilities"`
	GuestCapabilities []string `json:"guest_capabilities"`
	NoNewPrivileges   bool     `json:"no_new_privileges"`
	Seccomp           string   `json:"seccomp"` // "filter" or "none"
	SeccompProfile    string   `json:"seccomp_profile_sha256"`
	Network           string   `json:"network"` // "none": the loopback interface only
	// Localhost are the addresses of localhost in the container's /etc/hosts.
	Localhost    []string `json:"localhost,omitempty"`
	RootReadOnly bool     `json:"root_read_only"`
	// Isolation is IsolationNamespaces or IsolationProcess. In the latter case
	// Namespaces is empty.
	Isolation  Isolation `json:"isolation"`
	Namespaces []string  `json:"namespaces"`
	// UIDMap and GIDMap are the guest's user namespace maps: for each range the
	// first ID inside, the first ID outside, and the length.
	UIDMap   string `json:"uid_map,omitempty"`
	GIDMap   string `json:"gid_map,omitempty"`
	Rootless bool   `json:"rootless"`
	// Identities is the number of identities that commands can have: 1 or 16.
	Identities int `json:"identities"`

	Workspace       string `json:"workspace"`        // host path
	WorkspaceTarget string `json:"workspace_target"` // mount point in the container
	WorkspaceMode   string `json:"workspace_mode"`   // "bind", "overlay" or "copy"
	WorkspaceOwner  string `json:"workspace_owner"`  // uid:gid of new files on the host
	IDMapped        bool   `json:"id_mapped"`
	Git             string `json:"git"`
	// Mounts are the home and the additional mounts, parents first.
	Mounts []AttestedMount `json:"mounts,omitempty"`

	// Service is nil if no service runs.
	Service *AttestedService `json:"service,omitempty"`

	// Egress is nil if the sandbox has no egress listeners.
	Egress *AttestedEgress `json:"egress,omitempty"`

	Limits     AttestedLimits `json:"limits"`
	KillMethod string         `json:"kill_method"`
	// Lost names the missing protections, one sentence each.
	Lost []string `json:"lost,omitempty"`
}

// AttestedMount is a mount other than the workspace.
type AttestedMount struct {
	Target   string    `json:"target"`
	Type     MountType `json:"type"`
	ReadOnly bool      `json:"read_only,omitempty"`
	// Path is the host path of a bind or scratch directory.
	Path string `json:"path,omitempty"`
	// Bytes is the size of a tmpfs, or the bound of a scratch directory. A
	// command that exceeds the bound is ended.
	Bytes int64 `json:"bytes,omitempty"`
}

// AttestedService describes a service as it was started.
type AttestedService struct {
	Program string `json:"program"`
	// ArgsSHA256 is the hash of the program and its arguments, each followed by a
	// NUL.
	ArgsSHA256 string `json:"args_sha256"`
	// Identity is the identity the service runs as. If it is 0, the agent's
	// commands can stop and read it.
	Identity int `json:"identity"`
	// Healthy reports whether a health check succeeded; it is false if the
	// service has none. Tests is the number of checks that ran.
	Healthy bool `json:"healthy"`
	Tests   int  `json:"tests"`
	// ReadyMS is the time from the start until the service was healthy.
	ReadyMS int64 `json:"ready_ms"`
}

// AttestedLimits are the limits as read back. A limit that could not be read is
// 0, and Attestation.Lost names it.
type AttestedLimits struct {
	MemoryBytes int64 `json:"memory_bytes"`
	PIDs        int64 `json:"pids"`
	MilliCPUs   int64 `json:"milli_cpus"`
	TmpBytes    int64 `json:"tmp_bytes"`
	OpenFiles   int64 `json:"open_files"`
}
