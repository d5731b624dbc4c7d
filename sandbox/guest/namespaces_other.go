//go:build !linux

package guest

// HostNamespaces returns nil: the containers of this host run on another
// kernel.
func HostNamespaces() map[string]uint64 { return nil }
