// Package observe reads what the container really is, from inside: identities,
// mounts, namespaces, limits, interfaces. It reports and judges nothing; what
// can't be read stays zero, and the host refuses what it needs and misses.
package observe
