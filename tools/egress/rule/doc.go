// Package rule decides which hosts may be connected to: for the commands of a
// sandbox and for the fetch tool, by the same code.
//
// A host, and a URL, has one canonical form, which is compared with rules and
// dialled. [Policy] decides about hosts and requests before a name is resolved.
// [Guard] checks the addresses of a host and dials only those that it checked.
package rule
