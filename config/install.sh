#!/bin/sh
# Notes in install/kustomization.yaml what is to be installed: config/default with an image, and components
# of config/components. What was chosen before stays:
#
#     config/install.sh KUSTOMIZE IMAGE [COMPONENT…]
#
# An empty IMAGE leaves the image as it is. MANAGER_ARGS are flags of the manager that are added. Where there is no
# such file yet, what the cluster runs is what was chosen before, as far as it tells: image, components and flags.
set -eu
kustomize=$1 image=$2
shift 2
kubectl=${KUBECTL:-kubectl}
cd "$(dirname "$0")/.."
set -f # a flag is no pattern of file names
flags=$(printf '%s\n' ${MANAGER_ARGS:-})
set +f
printf '%s\n' "$flags" | grep -v '^--' | grep . >&2 && {
  echo "is no flag of the manager: MANAGER_ARGS has flags such as --default-load-balancer=false" >&2
  exit 1
}

for component; do
  [ -f "config/components/$component/kustomization.yaml" ] || {
    echo "there is no component $component:" $(ls config/components) >&2
    exit 1
  }
done
if ! [ -f install/kustomization.yaml ]; then
  running=$($kubectl -n purelb-system get deployment/purelb-manager --ignore-not-found -o \
    jsonpath='image {.spec.template.spec.containers[0].image}{range .spec.template.spec.containers[0].args[*]}{"\n"}arg {@}{end}{range .spec.template.spec.volumes[*]}{"\n"}volume {.secret.secretName}{end}{"\n"}'
    $kubectl -n purelb-system get networkpolicies,configmaps -o name)
  has() { printf '%s\n' "$running" | grep -qxF "$1"; }
  ! has 'volume purelb-webhook-tls' || set -- "$@" cert-manager
  ! has networkpolicy.networking.k8s.io/purelb-manager || set -- "$@" network-policy
  ! has configmap/purelb-dashboard || set -- "$@" prometheus
  [ -n "$image" ] || image=$(printf '%s\n' "$running" | sed -n 's/^image //p' | head -1)
  [ -n "$image" ] || {
    echo "say which image to install, such as IMG=registry.example.com/purelb:v1" >&2
    exit 1
  }
  # The manager's flags, but for those that config/manager gives it.
  flags=$(printf '%s\n' "$running" | sed -n 's/^arg --/--/p' | while IFS= read -r flag; do
    sed 's/^ *- //' config/manager/manager.yaml | grep -qxF -- "$flag" || printf '%s\n' "$flag"
  done; printf '%s\n' "$flags")
  mkdir -p install
  cat >install/kustomization.yaml <<'END'
# What make deploy installs. It may be edited: make deploy changes the image, if IMG says one, and adds
# components, if COMPONENTS names some, and flags of the manager, if MANAGER_ARGS has some; nothing else.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../config/default
END
fi
cd install
[ -z "$image" ] || "$kustomize" edit set image "purelb.io/purelb=$image"
for component; do
  grep -qxF -- "- ../config/components/$component" kustomization.yaml || "$kustomize" edit add component "../config/components/$component"
done
printf '%s\n' "$flags" | while IFS= read -r flag; do
  quoted="\"$(printf '%s' "$flag" | sed 's/[\\"]/\\&/g')\""
  patch="{\"op\":\"add\",\"path\":\"/spec/template/spec/containers/0/args/-\",\"value\":$quoted}"
  [ -z "$flag" ] || grep -qF -- "$patch" kustomization.yaml ||
    "$kustomize" edit add patch --kind Deployment --name purelb-manager --patch "[$patch]"
done
