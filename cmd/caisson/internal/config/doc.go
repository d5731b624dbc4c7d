// Package config reads Caisson's settings: the built-in ones, the user's file and its
// profiles, the environment, flags, and an administrator's requirements, which can only
// tighten. Anything unknown is an error with file, line and column. It opens no file of
// a workspace.
//
//	/etc/caisson/requirements.yaml        can only tighten
//	flags
//	CAISSON_… environment
//	workspaces.PATH of the user's file    of the workspace
//	profiles.NAME of the user's file      by --profile
//	$XDG_CONFIG_HOME/caisson/config.yaml
//	built-in
package config
