// Package observe reads what the container really is, from inside: identities,
// mounts, namespaces, limits, interfaces. It judges nothing. Unreadable values
// stay zero, and the host refuses a container if it needs one.
package observe
