// Argo's engine on a folder of manifests, as Argo CD drives it: objects are recognised by the label app.kubernetes.io/instance,
// health comes from the conditions Ready and Stalled, and what is no longer in the folder is pruned in the foreground.
//
//	argo-engine --namespace NAMESPACE --app NAME --folder FOLDER sync|status
//
// Both print JSON: the result of the synchronization, or the state of each object. An empty folder prunes all.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/argoproj/gitops-engine/pkg/cache"
	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/engine"
	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/sync"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
)

const instanceLabel = "app.kubernetes.io/instance"

// state of one object: in the folder, in the cluster, or in both.
type state struct {
	Object  string `json:"object"`
	Sync    string `json:"sync"`
	Health  string `json:"health"`
	Message string `json:"message,omitempty"`
}

type application struct {
	name, namespace, folder string
	config                  *rest.Config
	cache                   cache.ClusterCache
	log                     logr.Logger
}

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "how to reach the cluster")
	namespace := flag.String("namespace", "default", "the objects' namespace")
	name := flag.String("app", "", "the application's name")
	folder := flag.String("folder", ".", "the folder of manifests")
	limit := flag.Duration("timeout", 2*time.Minute, "how long a synchronization may take")
	flag.Parse()
	result, err := run(*kubeconfig, *namespace, *name, *folder, *limit, flag.Arg(0))
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(kubeconfig, namespace, name, folder string, limit time.Duration, command string) (any, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	log := logr.Discard()
	clusterCache := cache.NewClusterCache(config,
		cache.SetNamespaces([]string{namespace}),
		cache.SetLogr(log),
		cache.SetPopulateResourceInfoHandler(func(object *unstructured.Unstructured, _ bool) (any, bool) {
			instance := object.GetLabels()[instanceLabel]
			return instance, instance != ""
		}),
	)
	app := &application{name, namespace, folder, config, clusterCache, log}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch command {
	case "sync":
		return app.sync(ctx)
	case "status":
		return app.status()
	default:
		return nil, fmt.Errorf("what to do is sync or status, not %q", command)
	}
}

// manifests reads the folder and gives all that is in it the application's label and, where it has to have one, its namespace. The
// cache must have been synchronized: it knows which kinds have namespaces.
func (app *application) manifests() ([]*unstructured.Unstructured, error) {
	files, err := filepath.Glob(filepath.Join(app.folder, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		documents, err := kube.SplitYAML(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, documents...)
	}
	for _, object := range objects {
		labels := object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[instanceLabel] = app.name
		object.SetLabels(labels)
		namespaced, err := app.cache.IsNamespaced(object.GroupVersionKind().GroupKind())
		if err != nil {
			return nil, err
		}
		if namespaced && object.GetNamespace() == "" {
			object.SetNamespace(app.namespace)
		}
	}
	return objects, nil
}

func (app *application) isManaged(resource *cache.Resource) bool {
	return resource.Info == app.name
}

func (app *application) sync(ctx context.Context) (any, error) {
	gitops := engine.NewEngine(app.config, app.cache, engine.WithLogr(app.log))
	stop, err := gitops.Run()
	if err != nil {
		return nil, err
	}
	defer stop()
	targets, err := app.manifests()
	if err != nil {
		return nil, err
	}
	foreground := metav1.DeletePropagationForeground
	return gitops.Sync(ctx, targets, app.isManaged, "", app.namespace,
		sync.WithPrune(true),
		sync.WithPrunePropagationPolicy(&foreground),
		sync.WithHealthOverride(conditions{}),
		sync.WithLogr(app.log),
	)
}

func (app *application) status() (any, error) {
	if err := app.cache.EnsureSynced(); err != nil {
		return nil, err
	}
	defer app.cache.Invalidate()
	targets, err := app.manifests()
	if err != nil {
		return nil, err
	}
	managed, err := app.cache.GetManagedLiveObjs(targets, app.isManaged)
	if err != nil {
		return nil, err
	}
	pairs := sync.Reconcile(targets, managed, app.namespace, app.cache)
	differences, err := diff.DiffArray(pairs.Target, pairs.Live, diff.WithLogr(app.log))
	if err != nil {
		return nil, err
	}
	states := []state{}
	for i, target := range pairs.Target {
		live := pairs.Live[i]
		one := state{Sync: "Synced"}
		switch {
		case live == nil:
			one.Object, one.Sync, one.Health = key(target), "OutOfSync", string(health.HealthStatusMissing)
			states = append(states, one)
			continue
		case target == nil || differences.Diffs[i].Modified:
			one.Sync = "OutOfSync"
		}
		one.Object = key(live)
		found, err := health.GetResourceHealth(live, conditions{})
		if err != nil {
			return nil, err
		}
		if found != nil {
			one.Health, one.Message = string(found.Status), found.Message
		}
		states = append(states, one)
	}
	sort.Slice(states, func(i, j int) bool { return states[i].Object < states[j].Object })
	return states, nil
}

func key(object *unstructured.Unstructured) string {
	return object.GetKind() + "/" + object.GetName()
}

// conditions tells an object's health as a health check in Argo CD's settings would: Stalled is degraded, Ready is healthy once it
// speaks of the latest generation.
type conditions struct{}

func (conditions) GetResourceHealth(object *unstructured.Unstructured) (*health.HealthStatus, error) {
	if object.GroupVersionKind().Group != "berth.dev" {
		return nil, nil
	}
	found := &health.HealthStatus{Status: health.HealthStatusProgressing}
	list, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return nil, err
	}
	for _, item := range list {
		condition, ok := item.(map[string]any)
		if !ok || condition["status"] != "True" {
			continue
		}
		message, _ := condition["message"].(string)
		switch condition["type"] {
		case "Stalled":
			return &health.HealthStatus{Status: health.HealthStatusDegraded, Message: message}, nil
		case "Ready":
			observed, told := condition["observedGeneration"].(int64)
			if !told || observed == object.GetGeneration() {
				found.Status = health.HealthStatusHealthy
			}
		}
	}
	return found, nil
}
